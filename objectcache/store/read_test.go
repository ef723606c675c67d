// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestReaderReadsRanges(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), one(mib))
	put(t, s, "b", "k", "0123456789")
	o, err := s.Get("b", "k")
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	for _, r := range []struct {
		first, length int64
		want          string
	}{{0, 10, "0123456789"}, {3, 4, "3456"}, {9, 1, "9"}, {10, 0, ""}, {0, 1, "0"}} {
		reader, err := o.Reader(r.first, r.length)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(reader); err != nil || string(got) != r.want {
			t.Errorf("%d bytes from %d = %q, %v, want %q", r.length, r.first, got, err, r.want)
		}
	}
}

func TestDamageIsAMiss(t *testing.T) {
	t.Parallel()
	const data = "the quick brown fox jumps over the lazy dog"
	flip := func(at int64) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			text[at] ^= 1
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	truncate := func(size int64) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
		}
	}
	head := headerSize("b", "k")
	harms := map[string]func(t *testing.T, path string){
		"first byte":      flip(head),
		"last byte":       flip(head + int64(len(data)) - 1),
		"magic":           flip(0),
		"length":          flip(8),
		"checksum":        flip(16),
		"length of name":  flip(24),
		"header checksum": flip(32),
		"name":            flip(40),
		"cut":             truncate(head + 3),
		"cut header":      truncate(10),
		"empty":           truncate(0),
		"longer":          truncate(head + int64(len(data)) + 1),
		"gone":            func(_ *testing.T, path string) { os.Remove(path) },
	}
	for name, harm := range harms {
		for _, restart := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", restart"}[restart], func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				s := open(t, dir, one(mib))
				s.verifyEvery = -1 // change times are coarser than this test's steps
				put(t, s, "b", "k", data)
				harm(t, fileOf(s, "b", "k"))
				if restart {
					s.Close()
					s = open(t, dir, one(mib))
				}
				if got := get(t, s, "b", "k"); got != "miss" {
					t.Fatalf("got %q, want a miss", got)
				}
				if left := files(t, dir); len(left) > 0 {
					t.Errorf("damaged file is still there: %v", left)
				}
				if b := statsOf(t, s, "b"); b.Objects != 0 || b.Bytes != 0 {
					t.Errorf("after the miss: %+v, want nothing", b)
				}
				put(t, s, "b", "k", data)
				if got := get(t, s, "b", "k"); got != data {
					t.Errorf("put again: %q, want %q", got, data)
				}
			})
		}
	}
}

func TestAChangedFileIsVerifiedAgain(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), one(mib))
	put(t, s, "b", "k", "data")
	if got := get(t, s, "b", "k"); got != "data" {
		t.Fatalf("%q, want %q", got, "data")
	}
	path := fileOf(s, "b", "k")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)-1] ^= 1
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	// Repeat until the file system's clock has advanced.
	for deadline := time.Now().Add(time.Minute); ; {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		after, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if stampOf(after) != stampOf(before) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the file's change time stands still")
		}
	}
	if got := get(t, s, "b", "k"); got != "miss" {
		t.Errorf("%q, want a miss", got)
	}
	if b := statsOf(t, s, "b"); b.Damaged != 1 {
		t.Errorf("%d objects damaged, want 1", b.Damaged)
	}
}

func TestAnObjectBeingReadIsNotCut(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), one(3*mib))
	data := strings.Repeat("x", 2*mib)
	put(t, s, "b", "k", data)
	o, err := s.Get("b", "k")
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	put(t, s, "b", "other", strings.Repeat("y", 2*mib))
	if got := get(t, s, "b", "k"); got != "miss" {
		t.Fatal("the first object was not evicted: the test shows nothing")
	}
	if got := read(t, o); got != data {
		t.Errorf("%d bytes read, want all %d", len(got), len(data))
	}
}

// TestForeignFilesAreMissed replaces an object's file by a link, a pipe and the like while the store is running: reading the object must be
// a miss and must not block.
func TestForeignFilesAreMissed(t *testing.T) {
	s := open(t, t.TempDir(), one(mib))
	for name, make := range map[string]func(path string) error{
		"pipe":   func(path string) error { return unix.Mkfifo(path, 0o600) },
		"link":   func(path string) error { return os.Symlink("/dev/zero", path) },
		"folder": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		put(t, s, "b", name, "data")
		path := s.path("b", identify("b", name))
		if err := errors.Join(os.Remove(path), make(path)); err != nil {
			t.Fatal(err)
		}
		if got := get(t, s, "b", name); got != "miss" {
			t.Errorf("%s: %q", name, got)
		}
		if name != "folder" {
			put(t, s, "b", name, "again")
			if got := get(t, s, "b", name); got != "again" {
				t.Errorf("%s, stored anew: %q", name, got)
			}
		}
	}
}
