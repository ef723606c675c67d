// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source/scan"
	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/s3test"
)

// s3Tail is how many bytes at the end of a file the test's stores read when they open it.
const s3Tail = 4 << 10

// s3Store returns a store that connects to server.
func s3Store(t *testing.T, server *s3test.Server) *objstore.Store {
	t.Helper()
	cfg, err := objstore.Config{TailBytes: s3Tail, GapBytes: 64, Retry: objstore.Retry{Attempts: 3, FirstPause: time.Millisecond}}.WithProperties(server.Properties())
	if err != nil {
		t.Fatal(err)
	}
	store := objstore.New(cfg)
	t.Cleanup(store.Idle)
	return store
}

func TestOnS3(t *testing.T) {
	server := s3test.Start(t)
	w := icetest.OnS3(t, server, "lake")
	store := s3Store(t, server)
	for name, made := range map[string]*icetest.Table{
		"plain": w.Plain("plain", 2, 3, 100, 32), "nested": w.Nested("nested", 2), "partitions": w.ByCategory("partitions", 2),
		"positions": w.Deleted("positions", 2), "vectors": w.Deleted("vectors", 3), "equal": w.EqualDeleted("equal", 2), "evolved": w.Evolved("evolved", 2),
	} {
		t.Run(name, func(t *testing.T) {
			tbl, err := Open(t.Context(), store, Location{Metadata: made.Metadata()}, Selection{})
			if err != nil {
				t.Fatal(err)
			}
			check(t, tbl, made.Rows())
		})
	}
}

// TestFetchReadsWhatIsNeeded counts the bytes of the data file that are read for a split of some columns, and checks that decoding
// reads none.
func TestFetchReadsWhatIsNeeded(t *testing.T) {
	server := s3test.Start(t)
	made := icetest.OnS3(t, server, "lake").Plain("t", 2, 1, 20_000, 5_000)
	tbl, err := Open(t.Context(), s3Store(t, server), Location{Metadata: made.Metadata()}, Selection{Columns: []string{"id"}})
	if err != nil {
		t.Fatal(err)
	}
	split := planOf(t, tbl)[1]
	server.Forget()
	f, err := tbl.Fetch(t.Context(), split, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n := len(server.Requests()); n != 2 {
		t.Errorf("%d requests to fetch one column of one row group, want the tail and the chunk: %v", n, server.Requests())
	}
	if near := f.(*scan.Fetched).Bytes(); near-s3Tail > split.Length/2 {
		t.Errorf("%d bytes are near for one column of four, the row group has %d", near, split.Length)
	}
	server.Forget()
	var n int64
	for rec, err := range keptOf(t.Context(), f) {
		if err != nil {
			t.Fatal(err)
		}
		n += rec.NumRows()
		rec.Release()
	}
	if n != split.Rows || len(server.Requests()) != 0 {
		t.Errorf("%d rows of %d, %d requests while decoding", n, split.Rows, len(server.Requests()))
	}
}

func TestDeleteFilesAreReadOnce(t *testing.T) {
	server := s3test.Start(t)
	made := icetest.OnS3(t, server, "lake").Deleted("t", 2)
	tbl, err := Open(t.Context(), s3Store(t, server), Location{Metadata: made.Metadata()}, Selection{})
	if err != nil {
		t.Fatal(err)
	}
	server.Forget()
	splits := planOf(t, tbl) // which counts deleted rows
	plan, err := tbl.files(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	deletes := map[string]int{}
	for _, d := range plan.files {
		for _, f := range d.deletes.position {
			deletes[f.FilePath()] = 0
		}
	}
	readAll(t, tbl, splits)
	for _, r := range server.Requests() {
		if uri := "s3://" + r.Bucket + "/" + r.Key; r.Status == 206 || r.Status == 200 {
			if _, ok := deletes[uri]; ok {
				deletes[uri]++
			}
		}
	}
	for uri, n := range deletes {
		if n != 1 {
			t.Errorf("%s was read %d times", uri, n)
		}
	}
	if len(deletes) == 0 {
		t.Error("there are no delete files")
	}
}

func TestS3Faults(t *testing.T) {
	server := s3test.Start(t)
	made := icetest.OnS3(t, server, "lake").Plain("t", 2, 3, 100, 32)
	store := s3Store(t, server)
	open := func(t *testing.T) *Table {
		t.Helper()
		tbl, err := Open(t.Context(), store, Location{Metadata: made.Metadata()}, Selection{})
		if err != nil {
			t.Fatal(err)
		}
		return tbl
	}
	tbl := open(t)
	splits := planOf(t, tbl)
	_, key, _ := strings.Cut(strings.TrimPrefix(splits[5].File, "s3://"), "/")

	t.Run("denied", func(t *testing.T) {
		defer server.Inject(s3test.Match{Key: key}, s3test.Deny()).Remove()
		_, err := open(t).Plan(t.Context(), nil)
		wantError(t, err, splits[5].File, "denied")
		_, err = readSplit(t, tbl, splits[5])
		wantError(t, err, splits[5].File, "denied")
	})
	t.Run("one reset", func(t *testing.T) {
		defer server.Inject(s3test.Match{Key: key, Count: 1}, s3test.Reset(10)).Remove()
		check(t, open(t), made.Rows())
	})
	t.Run("replaced by as many bytes", func(t *testing.T) {
		good := server.Get("lake", key)
		bad := bytes.Clone(good)
		bad[splits[5].Start+10] ^= 1
		server.Put("lake", key, bad)
		defer server.Put("lake", key, good)
		for _, tbl := range []*Table{tbl, open(t)} { // one table that has the footer cached, and one that has not
			_, err := readSplit(t, tbl, splits[5])
			wantError(t, err, splits[5].File, "changed since the table was planned")
		}
	})
	t.Run("deleted", func(t *testing.T) {
		server.Delete("lake", key)
		_, err := readSplit(t, tbl, splits[5])
		wantError(t, err, splits[5].File)
	})
}
