// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"os"
	"testing"
	"time"
)

func TestQuotaCountsBlocks(t *testing.T) {
	t.Parallel()
	s := openWith(t, Config{Dir: t.TempDir(), Limits: one(5 * 4096), Block: 4096})
	for i := range 10 {
		put(t, s, "b", fmt.Sprint(i), "d")
	}
	if b := statsOf(t, s, "b"); b.Objects != 5 || b.Bytes != 5*4096 {
		t.Errorf("%d objects of %d bytes, want 5 of a block each", b.Objects, b.Bytes)
	}
	put(t, s, "b", "large", string(make([]byte, 3*4096)))
	if b := statsOf(t, s, "b"); b.Objects != 2 || b.Bytes != 5*4096 {
		t.Errorf("%d objects of %d bytes, want one of 4 blocks and one of 1", b.Objects, b.Bytes)
	}
}

func TestTheFileSystemsBlockIsTheDefault(t *testing.T) {
	t.Parallel()
	s := openWith(t, Config{Dir: t.TempDir(), Limits: one(mib)})
	put(t, s, "b", "key", "d")
	if b := statsOf(t, s, "b"); b.Bytes < 512 {
		t.Errorf("an object of one byte counts as %d bytes", b.Bytes)
	}
}

func TestObjectsAreCapped(t *testing.T) {
	t.Parallel()
	limits := Limits{Total: mib, Objects: 6, Quotas: map[string]int64{"a": mib, "b": mib}}
	s := open(t, t.TempDir(), limits)
	put(t, s, "a", "first", "d")
	for i := range 10 {
		put(t, s, "b", fmt.Sprint(i), "d")
	}
	if a, b := statsOf(t, s, "a"), statsOf(t, s, "b"); a.Objects != 1 || b.Objects != 5 || b.Evicted != 5 {
		t.Errorf("%+v and %+v, want 1 and 5 objects: the bucket above its share loses some", a, b)
	}
	if got := fmt.Sprint(present(s, "b", "4", "5", "9")); got != "[5 9]" {
		t.Errorf("%s are left, want the last five", got)
	}
	limits.Objects = 2
	s.SetLimits(limits)
	if a, b := statsOf(t, s, "a"), statsOf(t, s, "b"); a.Objects+b.Objects != 2 {
		t.Errorf("%d and %d objects under a cap of 2", a.Objects, b.Objects)
	}
}

// TestScanIsBounded scans a folder with more objects than the cap allows.
func TestScanIsBounded(t *testing.T) {
	t.Parallel()
	const objects, limit = 1000, 80
	dir := t.TempDir()
	s := open(t, dir, one(mib))
	var newest []string
	for i := range objects {
		key := fmt.Sprint(i)
		put(t, s, "b", key, "d")
		used := time.Unix(1e9+int64(i), 0)
		if err := os.Chtimes(fileOf(s, "b", key), used, used); err != nil {
			t.Fatal(err)
		}
		if i >= objects-limit {
			newest = append(newest, key)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	limits := one(mib)
	limits.Objects = limit
	s = open(t, dir, limits)
	if entries := int(s.index.next) - 1; entries > limit+limit/8+1 {
		t.Errorf("the index had %d entries, want about %d at most", entries, limit)
	}
	if got := present(s, "b", newest...); len(got) != limit {
		t.Errorf("%d of the %d most recently used objects are left", len(got), limit)
	}
	if left := len(files(t, dir)); left != limit {
		t.Errorf("%d files are left, want %d", left, limit)
	}
}
