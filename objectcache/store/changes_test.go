// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// hasID reports whether a list of changes contains an object of bucket "b".
func hasID(ids []byte, key string) bool {
	id := identify("b", key)
	for each := range slices.Chunk(ids, IDSize) {
		if identity(each) == id {
			return true
		}
	}
	return false
}

// changed returns the IDs of Changed.
func changed(s *Store, since time.Time) ([]byte, error) {
	c, err := s.Changed(since)
	if err != nil {
		return nil, err
	}
	var ids bytes.Buffer
	_, err = c.WriteTo(&ids)
	return ids.Bytes(), errors.Join(err, c.Close())
}

func TestChangesSurviveTheProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, one(mib))
	put(t, s, "b", "before", "d")
	since := time.Now()
	put(t, s, "b", "stored", "d")
	if err := s.Delete("b", "before"); err != nil {
		t.Fatal(err)
	}
	put(t, s, "b", "evicted", "d")
	s.SetLimits(one(0))
	s.Close()
	s = open(t, dir, one(mib))
	put(t, s, "b", "later", "d")
	ids, err := changed(s, since)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"before", "stored", "evicted", "later"} {
		if !hasID(ids, key) {
			t.Errorf("the change of %q is not listed", key)
		}
	}
	if hasID(ids, "untouched") {
		t.Error("an object that was not touched is listed")
	}
	if _, err := changed(s, since.Add(-time.Hour)); err != nil {
		t.Errorf("before the first log of a new folder: %v, want all that there is", err)
	}
	s.Close()
	if err := os.Remove(filepath.Join(dir, logName)); err != nil {
		t.Fatal(err)
	}
	if _, err := changed(open(t, dir, one(mib)), since); !errors.Is(err, ErrForgotten) {
		t.Errorf("before a log that is not the first: %v, want %v", err, ErrForgotten)
	}
}

func TestTheChangeLogIsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, one(mib))
	s.log.limit = 10
	put(t, s, "b", "first", "d")
	var since time.Time
	for i := range 100 {
		put(t, s, "b", fmt.Sprint(i), "d")
		if i == 94 {
			since = time.Now()
		}
	}
	ids, err := changed(s, since)
	if err != nil || !hasID(ids, "95") || !hasID(ids, "99") {
		t.Errorf("recent changes: %d bytes, %v", len(ids), err)
	}
	if _, err := changed(s, since.Add(-time.Hour)); !errors.Is(err, ErrForgotten) {
		t.Errorf("old changes: %v, want %v", err, ErrForgotten)
	}
	for _, name := range []string{logName, oldLogName} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() > 10*recordSize {
			t.Errorf("%s: %v, %v, want at most 10 records", name, info, err)
		}
	}
}

func TestDiscardAndClear(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), one(mib))
	for _, key := range []string{"a", "b", "c"} {
		put(t, s, "b", key, "d")
	}
	a, none := identify("b", "a"), identify("b", "none")
	between := time.Now().Add(10 * time.Millisecond) // file times may lag behind
	time.Sleep(20 * time.Millisecond)                //nolint:forbidigo // the files that follow are later than between
	put(t, s, "b", "c", "new")
	c := identify("b", "c")
	if err := s.Discard(bytes.NewReader(slices.Concat(a[:], none[:], c[:])), between); err != nil {
		t.Fatal(err)
	}
	if got := get(t, s, "b", "a") + get(t, s, "b", "b") + get(t, s, "b", "c"); got != "missdnew" {
		t.Errorf("after discarding a, and what c was before: %q", got)
	}
	if err := s.Discard(bytes.NewReader(a[:5]), between); err == nil {
		t.Error("a part of an ID is taken")
	}
	if err := s.Clear(between); err != nil {
		t.Fatal(err)
	}
	if got := get(t, s, "b", "b") + get(t, s, "b", "c"); got != "missnew" {
		t.Errorf("after removing what was before c: %q", got)
	}
	if err := s.Clear(time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if b := statsOf(t, s, "b"); b.Objects != 0 || b.Bytes != 0 {
		t.Errorf("%+v is left", b)
	}
	accounted(t, s)
}
