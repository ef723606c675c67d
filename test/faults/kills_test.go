// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/proctest"
	"github.com/kubeflow/datacache/test/kit/s3test"
)

func TestNodeKilledWhileLoading(t *testing.T) {
	t.Parallel()
	l := onS3(t, 4, 50, 25)
	c := planned(t, l, 2)
	stall := l.s3.Inject(s3test.Match{Key: l.files[1]}, s3test.Stall(100))
	c.startNode(0)
	c.startNode(1)
	c.awaitNode(1, "Ready", "")
	deadline.Eventually(t, func() error {
		if stall.Hits() == 0 {
			return errors.New("data node 0 has not read its second file")
		}
		return nil
	})
	c.nodes[0].kill()
	c.await(protocol.StateLoading, "data node 0")
	c.refused("loading")

	stall.Remove()
	c.startNode(0)
	s := c.await(protocol.StateReady)
	if s.Nodes[0].Restarts != 1 || s.Nodes[1].Restarts != 0 {
		t.Errorf("restarts %d and %d, want 1 and 0", s.Nodes[0].Restarts, s.Nodes[1].Restarts)
	}
	c.servesAll(3)
	c.wantReads("node-0", l.files[:2])
	c.wantReads("node-1", l.files[2:])
}

// wantReads asserts which data files a process has read since the log was last cleared.
func (c *cluster) wantReads(name string, files []string) {
	c.t.Helper()
	want := slices.Sorted(slices.Values(files))
	if got := c.reads(name); !slices.Equal(want, got) {
		c.t.Errorf("%s read %v, want %v", name, got, want)
	}
}

func TestNodeKilledWhileReadyReloadsItsOwnSplits(t *testing.T) {
	t.Parallel()
	l := onS3(t, 4, 50, 25)
	c := newCluster(t, l, 2)
	c.variables = append(c.variables, "NODE_NAME=rack-1")
	c.startAll()
	c.await(protocol.StateReady)
	l.s3.Forget()
	c.nodes[1].kill()
	lost := c.await(protocol.StateDegraded, "data node 1 ("+c.nodeAddrs[1]+" on machine rack-1) is gone since 2")
	if strings.Contains(lost.Reason, "context canceled") {
		t.Errorf("the reason %q is of no use to anybody", lost.Reason)
	}
	if lost.Splits.Done != 4 || lost.Rows != 100 || lost.Nodes[1].Bytes != 0 {
		t.Errorf("%d of %d splits and %d rows are said to be in memory while data node 1 is lost, want 4 and 100; of it %d bytes", lost.Splits.Done, lost.Splits.Total, lost.Rows, lost.Nodes[1].Bytes)
	}
	c.refused("data node 1")
	c.startNode(1)
	s := c.await(protocol.StateReady)
	if s.Nodes[1].Restarts != 1 {
		t.Errorf("%d restarts of data node 1, want 1", s.Nodes[1].Restarts)
	}
	c.servesAll(3)
	c.wantReads("head", nil)
	c.wantReads("node-0", nil)
	c.wantReads("node-1", l.files[2:])
}

func TestNodeKilledInMidStream(t *testing.T) {
	t.Parallel()
	c := running(t, big(t), 2)
	info, err := c.info(deadline.Context(t), shardOf(0, 1))
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.open(deadline.Context(t), info.GetEndpoint()[1])
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.next()
	if err != nil {
		t.Fatal(err)
	}
	c.nodes[1].kill()
	more, err := s.rest()
	if code := status.Code(err); err == nil || code != codes.Unavailable {
		t.Fatalf("a killed node's stream ended after %d rows with %v (%s), want UNAVAILABLE", len(got)+len(more), err, code)
	}
	m, err := metadataOf(info)
	if err != nil {
		t.Fatal(err)
	}
	lo := m.Nodes[1][0]
	got = append(got, more...)
	if diff := cmp.Diff(between(lo, lo+int64(len(got))), got); diff != "" {
		t.Errorf("rows before the kill (-want +got):\n%s", diff)
	}
}

// TestEpochResumesAfterKill kills a node in the middle of an epoch. The reader keeps complete steps, waits for the cache and requests
// the remaining steps.
func TestEpochResumesAfterKill(t *testing.T) {
	t.Parallel()
	c := running(t, big(t), 2)
	e := epoch.Epoch{Seed: 5, Number: 1, Shuffle: true, Clump: 1, GlobalBatch: 64, Tail: "keep"}
	whole := epoch.Share{World: 1, Workers: 1}
	read, err := c.epoch(deadline.Context(t), e, whole)
	if err != nil {
		t.Fatal(err)
	}
	got, err := read.take(500)
	if err != nil {
		t.Fatal(err)
	}
	c.nodes[1].kill()
	more, err := read.take(bigFiles * bigRows)
	if code := status.Code(err); errors.Is(err, io.EOF) || code != codes.Unavailable {
		t.Fatalf("the epoch went on for %d rows and ended with %v, want UNAVAILABLE", len(more), err)
	}
	got = append(got, more...)
	got = got[:len(got)/64*64]

	c.await(protocol.StateDegraded, "data node 1")
	c.startNode(1)
	c.await(protocol.StateReady)
	whole.StartStep = uint64(len(got) / 64)
	rest, err := c.wholeEpoch(deadline.Context(t), e, whole)
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, rest...)
	slices.Sort(got)
	if diff := cmp.Diff(c.lake.all(), got); diff != "" {
		t.Fatalf("rows of the epoch in its two parts (-want +got):\n%s", diff)
	}
}

// TestHeadKilledWhileReady restarts the head after the table has changed: the nodes must keep their rows and with them the snapshot.
func TestHeadKilledWhileReady(t *testing.T) {
	t.Parallel()
	l := onS3(t, 4, 50, 25)
	l.publish(1)
	c := running(t, l, 2)
	before := c.await(protocol.StateReady)
	stream, pinned := c.firstOfNode(0), l.rows
	c.head.kill()
	for i := range c.nodes {
		if s := c.awaitNode(i, "Waiting", "loaded"); s.Rows != 100 {
			t.Errorf("data node %d without a head has %d rows, want 100", i, s.Rows)
		}
	}
	if ids, err := stream.rest(); err != nil || len(ids) == 0 {
		t.Errorf("a stream that ran when the head was killed gave %d rows and %v", len(ids), err)
	}
	l.append(50)
	l.publish(2)
	l.rows = pinned
	l.s3.Forget()

	c.startHead()
	after := c.await(protocol.StateReady)
	if after.Snapshot != before.Snapshot || after.Rows != before.Rows {
		t.Errorf("the new head has snapshot %d with %d rows, the nodes hold %d with %d", after.Snapshot, after.Rows, before.Snapshot, before.Rows)
	}
	c.wantReads("node-0", nil)
	c.wantReads("node-1", nil)
	c.servesAll(3)

	c.nodes[0].kill()
	c.await(protocol.StateDegraded, "data node 0")
	c.startNode(0)
	c.await(protocol.StateReady)
	c.servesAll(3)
	c.wantReads("node-0", l.files[:2])
	c.wantReads("node-1", nil)
}

// firstOfNode starts reading a node's rows.
func (c *cluster) firstOfNode(i int) *stream {
	c.t.Helper()
	info, err := c.info(deadline.Context(c.t), shardOf(0, 1))
	if err != nil {
		c.t.Fatal(err)
	}
	s, err := c.open(deadline.Context(c.t), info.GetEndpoint()[i])
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := s.next(); err != nil {
		c.t.Fatal(err)
	}
	return s
}

func TestHeadKilledWhileLoading(t *testing.T) {
	t.Parallel()
	l := onS3(t, 4, 50, 25)
	c := planned(t, l, 2)
	stall := l.s3.Inject(s3test.Match{Key: l.files[1], Skip: 1}, s3test.Stall(-1))
	c.startNode(0)
	c.startNode(1)
	c.awaitNode(1, "Ready", "")
	c.awaitNode(0, "Loading", "")
	c.head.kill()
	c.awaitNode(1, "Waiting", "loaded")
	l.s3.Forget()
	c.startHead()
	c.await(protocol.StateLoading)
	stall.Remove()
	c.await(protocol.StateReady)
	c.wantReads("node-1", nil)
	for _, key := range c.reads("node-0") {
		if slices.Contains(l.files[2:], key) {
			t.Errorf("data node 0 read %s of data node 1", key)
		}
	}
	c.servesAll(3)
}

// TestHeadKilledWhileLoadingAndTableMovesOn kills the head while one node has loaded and one is loading, and changes the table: the
// cache must continue with the snapshot that the nodes hold.
func TestHeadKilledWhileLoadingAndTableMovesOn(t *testing.T) {
	t.Parallel()
	l := onS3(t, 4, 50, 25)
	l.publish(1)
	c := planned(t, l, 2)
	stall := l.s3.Inject(s3test.Match{Key: l.files[1]}, s3test.Stall(-1))
	c.startNode(0)
	c.startNode(1)
	c.awaitNode(1, "Ready", "")
	c.awaitNode(0, "Loading", "")
	c.head.kill()
	old := l.rows
	l.append(50)
	l.publish(2)
	stall.Remove()
	c.startHead()
	c.await(protocol.StateReady)
	l.rows = old
	c.servesAll(3)
}

// TestTwoProcessesWithOneIndex starts a second node with the index of a running one: the newer one is rejected, waits, and takes over
// when the older one is gone, or has frozen.
func TestTwoProcessesWithOneIndex(t *testing.T) {
	for name, end := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, onS3(t, 4, 50, 25), 2)
			if end == syscall.SIGSTOP {
				c.headArgs = frozenIsLost
			}
			c.startAll()
			c.await(protocol.StateReady)
			address, another := c.nodeAddrs[0], proctest.FreeAddress(t)
			newer := c.spawnNode(0, another, proctest.FreeAddress(t))
			refusal := fmt.Sprintf("data node 0 is the living process at %s, so the process at %s can't be it", address, another)
			newer.awaitNode("Waiting", refusal)
			newer.logs(refusal)
			if s := c.await(protocol.StateReady); s.Nodes[0].Address != address || s.Nodes[0].Restarts != 0 {
				t.Errorf("data node 0 is %+v, want the older process", s.Nodes[0])
			}
			c.servesAll(2)

			c.nodes[0].signal(end)
			c.nodes[0] = newer
			c.await(protocol.StateReady)
			c.servesAll(2)
		})
	}
}
