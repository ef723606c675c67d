// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeflow/datacache/test/kit/disktest"
)

// TestDamagedFolder opens a store one of whose files was damaged, exchanged, or replaced by something else: an object is what was stored or a miss, or the
// scan names what it found.
func TestDamagedFolder(t *testing.T) {
	t.Parallel()
	for _, way := range disktest.Ways() {
		t.Run(way, func(t *testing.T) {
			disktest.Rounds(t, 4, func(t *testing.T, r *rand.Rand) { damagedFolder(t, r, way) })
		})
	}
}

func damagedFolder(t *testing.T, r *rand.Rand, way string) {
	dir, limits := t.TempDir(), Limits{Total: 1 << 40, Quotas: map[string]int64{"a": mib, "b": mib}}
	s := open(t, dir, limits)
	dataOf := func(bucket, key string) string { return strings.Repeat(bucket+key, 1000) }
	keys := []string{"1", "2", "3"}
	for _, key := range keys {
		put(t, s, "a", key, dataOf("a", key))
		put(t, s, "b", key, dataOf("b", key))
	}
	s.Touch()
	s.Close()
	files := disktest.Files(t, dir)
	file := files[r.IntN(len(files))]
	disktest.Damage(t, r, way, file, files)

	s, err := Open(Config{Dir: dir, Limits: limits, Block: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Scan(t.Context()); err != nil {
		if !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %s: scan says %v, want an error that names the file", file, way, err)
		}
		return
	}
	misses := 0
	for _, bucket := range []string{"a", "b"} {
		for _, key := range keys {
			small, err := s.ReadSmall(bucket, key, make([]byte, 1<<16))
			if err == nil && string(small) != dataOf(bucket, key) {
				t.Errorf("%s: %s: ReadSmall of %s/%s has other bytes", file, way, bucket, key)
			}
			got := get(t, s, bucket, key)
			if got == "miss" {
				misses++
			} else if got != dataOf(bucket, key) {
				t.Errorf("%s: %s: %s/%s has other bytes", file, way, bucket, key)
			}
		}
	}
	if misses > 2 {
		t.Errorf("%s: %s: %d objects are lost", file, way, misses)
	}
	put(t, s, "a", "4", "new")
	s.Touch()
	s.LastAlive()
	changed, err := s.Changed(time.Now().Add(-time.Hour))
	if errors.Is(err, ErrForgotten) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer changed.Close()
	var ids bytes.Buffer
	if _, err := changed.WriteTo(&ids); err != nil && !strings.Contains(err.Error(), dir) {
		t.Error(err)
	}
	if id := identify("a", "4"); !bytes.Contains(ids.Bytes(), id[:]) {
		t.Errorf("%s: %s: the last change is not known", file, way)
	}
}

// TestForeignLog opens a store that has something else in place of its log of changes or of its file of the time of last use: it knows neither, and does
// not write where a link leads.
func TestForeignLog(t *testing.T) {
	t.Parallel()
	for kind, place := range map[string]func(path, outside string) error{
		"a pipe":              func(path, _ string) error { return unix.Mkfifo(path, 0o600) },
		"a link":              func(path, outside string) error { return os.Symlink(outside, path) },
		"a link to /dev/zero": func(path, _ string) error { return os.Symlink("/dev/zero", path) },
		"a folder":            func(path, _ string) error { return os.Mkdir(path, 0o700) },
	} {
		for _, name := range []string{logName, oldLogName, aliveName} {
			t.Run(kind+" as "+name, func(t *testing.T) {
				dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
				s := open(t, dir, one(mib))
				put(t, s, "b", "k", "data")
				s.Close()
				text, err := os.ReadFile(filepath.Join(dir, logName))
				if err != nil {
					t.Fatal(err)
				}
				path := filepath.Join(dir, name)
				if err := errors.Join(os.WriteFile(outside, text, 0o600), os.RemoveAll(path), place(path, outside)); err != nil {
					t.Fatal(err)
				}
				s = open(t, dir, one(mib))
				if name == logName && s.log.file != nil {
					t.Error("changes are written to it")
				}
				put(t, s, "b", "k2", "data")
				if name == aliveName {
					if at, known := s.LastAlive(); known {
						t.Errorf("it was in use at %v", at)
					}
				} else if _, err := changed(s, time.Now().Add(-time.Hour)); err == nil {
					t.Error("the changes are known")
				}
				if now, err := os.ReadFile(outside); err != nil || !bytes.Equal(now, text) {
					t.Errorf("what the link leads to has %d bytes, before %d: %v", len(now), len(text), err)
				}
			})
		}
	}
}
