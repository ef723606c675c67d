// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	pqfile "github.com/apache/arrow-go/v18/parquet/file"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/s3test"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// TestStoreThatRecovers loads from a store with temporary faults, which must not affect the rows.
func TestStoreThatRecovers(t *testing.T) {
	tests := []struct {
		name  string
		fault s3test.Fault
		count int
	}{
		{"throttles", s3test.Throttle(), 8},
		{"answers 500", s3test.Refuse(500, "InternalError"), 8},
		{"resets before the answer", s3test.Reset(-1), 8},
		{"resets in mid-body", s3test.Reset(700), 8},
		{"ends the body early", s3test.Truncate(700), 8},
		{"stalls in mid-body", s3test.Stall(700), 4},
		{"stalls before the answer", s3test.Stall(-1), 4},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := onS3(t, 4, 200, 50)
			c := newCluster(t, l, 1)
			c.args = append(c.args, "--stall-timeout", "400ms")
			planning := l.s3.Inject(s3test.Match{Key: "/data/", Count: test.count / 2}, test.fault)
			c.startHead()
			c.awaitPlan()
			loading := l.s3.Inject(s3test.Match{Key: "/data/", Count: test.count}, test.fault)
			c.startNode(0)
			c.await(protocol.StateReady)
			if planning.Hits() != test.count/2 || loading.Hits() != test.count {
				t.Fatalf("%d and %d requests met the fault, want %d and %d", planning.Hits(), loading.Hits(), test.count/2, test.count)
			}
			for _, p := range []*process{c.head, c.nodes[0]} {
				t.Logf("%s tried %.0f requests again", p.name, p.metric("datacache_objstore_retries_total"))
			}
			c.servesAll(3)
		})
	}
}

// TestStoreThatStaysBroken checks that loading is retried, that the status names the file and the reason, and that the cache loads
// once the store works.
func TestStoreThatStaysBroken(t *testing.T) {
	tests := []struct {
		name   string
		fault  s3test.Fault
		reason string
	}{
		{"throttles", s3test.Throttle(), "SlowDown"},
		{"stalls", s3test.Stall(100), "no byte for 400ms"},
		{"resets", s3test.Reset(100), "tries"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := onS3(t, 4, 50, 25)
			c := newCluster(t, l, 1)
			c.args = append(c.args, "--stall-timeout", "400ms", "--retry-time", "2s")
			c.startHead()
			c.awaitPlan()
			broken := l.s3.Inject(s3test.Match{Key: l.files[2]}, test.fault)
			c.startNode(0)
			s := c.await(protocol.StateLoading, "trying again in")
			for _, part := range []string{l.name(2), test.reason, "tries", "data node 0"} {
				if !strings.Contains(s.Reason, part) {
					t.Errorf("the reason %q lacks %q", s.Reason, part)
				}
			}
			c.refused(l.name(2))
			c.awaitNode(0, "Loading", l.name(2))
			broken.Remove()
			c.await(protocol.StateReady)
			c.servesAll(2)
		})
	}
}

// TestFirstLoadThatGetsNowhereFails checks that a cache that was never ready waits only a limited time for its store.
func TestFirstLoadThatGetsNowhereFails(t *testing.T) {
	t.Parallel()
	l := onS3(t, 4, 50, 25)
	c := newCluster(t, l, 1)
	c.args = append(c.args, "--retry-time", "1s")
	c.headArgs = append(c.headArgs, "--load-timeout", "4s")
	c.startHead()
	c.awaitPlan()
	l.s3.Inject(s3test.Match{Key: l.files[2]}, s3test.Throttle())
	c.startNode(0)
	failedWith(c, "no progress for 4s", l.name(2), "SlowDown")
}

// TestFileDeletedInMidLoad deletes a file that a node is about to read, while the node waits for another one.
func TestFileDeletedInMidLoad(t *testing.T) {
	t.Parallel()
	l := onS3(t, 8, 50, 50)
	c := planned(t, l, 1)
	stall := c.stallAll()
	c.startNode(0)
	deadline.Eventually(t, func() error {
		if stall.Hits() == 0 {
			return fmt.Errorf("nothing was read yet")
		}
		return nil
	})
	l.remove(7)
	stall.Release()
	failedWith(c, l.name(7), "404")
}

// TestFileTruncatedInMidLoad truncates a file that a node has opened but not read.
func TestFileTruncatedInMidLoad(t *testing.T) {
	t.Parallel()
	l := onDisk(t, 8, 50, 50)
	c := planned(t, l, 1)
	l.replace(7, l.data(7)[:len(l.data(7))-300])
	c.startNode(0)
	failedWith(c, l.name(7), "truncated or replaced")
}

// TestFileReplacedBetweenLoads replaces a data file before its node restarts.
func TestFileReplacedBetweenLoads(t *testing.T) {
	tests := []struct {
		name    string
		replace func(l *lake)
		reason  string
	}{
		{"by one of another size", func(l *lake) { l.replace(2, append(l.data(2)[:4:4], l.data(2)...)) }, "truncated or replaced"},
		{"by another one of the table", func(l *lake) { l.replace(2, l.data(0)) }, ""},
		{"by one with one other value", func(l *lake) { l.otherValue(2) }, "changed since the table was planned"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := compressed(t, "uncompressed", 4, 50, 25)
			c := running(t, l, 2)
			c.servesAll(2)
			c.nodes[1].kill()
			test.replace(l)
			c.startNode(1)
			failedWith(c, l.name(2), test.reason)
		})
	}
}

// otherValue replaces a data file with one of the same size that has another text in one row.
func (l *lake) otherValue(file int) {
	l.t.Helper()
	before := l.data(file)
	after := bytes.ReplaceAll(before, []byte("text of row 000123"), []byte("text of row 999123"))
	if bytes.Equal(before, after) {
		l.t.Fatal("the text was not found")
	}
	l.replace(file, after)
}

// TestCorruptByteInChecksummedPage flips bytes in a zstd page, whose frames have a checksum.
func TestCorruptByteInChecksummedPage(t *testing.T) {
	random := seedtest.New(t)
	for range 3 {
		at := random.Float64()
		t.Run(fmt.Sprintf("at %.3f", at), func(t *testing.T) {
			t.Parallel()
			l := onS3(t, 2, 200, 200)
			first, end := l.pages(1, "id")
			offset := first + int(at*float64(end-first))
			l.flip(1, offset)
			c := planned(t, l, 1)
			c.startNode(0)
			s := c.ended()
			t.Logf("byte %d: %s", offset, s.Reason)
			failedWith(c, l.name(1))
		})
	}
}

// TestCorruptByteThatNothingGuards changes a byte of a text in an uncompressed page without a checksum. Such a file is as valid as the
// original, so the change can't be detected. The test checks the rest: the number of rows, every other value, and that the process
// keeps running.
func TestCorruptByteThatNothingGuards(t *testing.T) {
	t.Parallel()
	l := compressed(t, "uncompressed", 2, 200, 200)
	offset := bytes.Index(l.data(1), []byte("text of row 000300"))
	if offset < 0 {
		t.Fatal("the text was not found")
	}
	data := bytes.Clone(l.data(1))
	data[offset] = 'n' // still UTF-8, which is checked
	l.replace(1, data)
	c := planned(t, l, 1)
	c.startNode(0)
	s := c.ended()
	if s.State == protocol.StateFailed {
		t.Fatalf("noticed, so this test and the documentation say too little: %s", s.Reason)
	}
	if s.Rows != int64(l.rows) {
		t.Errorf("%d rows, want %d", s.Rows, l.rows)
	}
	if _, err := c.shard(deadline.Context(t), 0, 1); err == nil || !strings.Contains(err.Error(), "row 300: text") {
		t.Errorf("the rows differ by %v, want by the text of row 300", err)
	}
}

// ended waits until loading has succeeded or failed.
func (c *cluster) ended() protocol.Status {
	c.t.Helper()
	var s protocol.Status
	deadline.Eventually(c.t, func() (err error) {
		s, err = statusOf[protocol.Status](c.head)
		if err == nil && s.State != protocol.StateFailed && s.State != protocol.StateReady {
			err = fmt.Errorf("the head is %s: %s", s.State, s.Reason)
		}
		return err
	})
	return s
}

// flip flips all bits of a byte of a data file.
func (l *lake) flip(file, offset int) {
	l.t.Helper()
	data := bytes.Clone(l.data(file))
	data[offset] ^= 0xff
	l.replace(file, data)
}

// pages returns the offsets of a column's compressed pages in a data file with one row group, starting with the zstd frame.
func (l *lake) pages(file int, column string) (first, end int) {
	l.t.Helper()
	data := l.data(file)
	r, err := pqfile.NewParquetReader(bytes.NewReader(data))
	if err != nil {
		l.t.Fatal(err)
	}
	group := r.MetaData().RowGroup(0)
	for i := range group.NumColumns() {
		c, err := group.ColumnChunk(i)
		if err != nil {
			l.t.Fatal(err)
		}
		if c.PathInSchema().String() != column {
			continue
		}
		start := int(c.DataPageOffset())
		end := start + int(c.TotalCompressedSize())
		frame := bytes.Index(data[start:end], []byte{0x28, 0xb5, 0x2f, 0xfd}) // zstd's magic number
		if frame < 0 {
			l.t.Fatalf("no zstd frame in column %s", column)
		}
		return start + frame, end
	}
	l.t.Fatalf("no column %s", column)
	return 0, 0
}
