// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestScan(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, Limits{Total: mib, Quotas: map[string]int64{"b": mib, "leaving": mib}})
	keys := []string{"oldest", "older", "newer", "newest"}
	for i, key := range keys {
		put(t, s, "b", key, key)
		at := time.Unix(1e9+int64(i), 0)
		if err := os.Chtimes(fileOf(s, "b", key), at, at); err != nil {
			t.Fatal(err)
		}
	}
	put(t, s, "leaving", "k", "data")
	w, err := s.Create("b", "half", -1) // as a killed process leaves it
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Dir(fileOf(s, "b", "oldest"))
	for _, stray := range []string{"README", "zz", strings.Repeat("0", 29), strings.Repeat("0", 64)} {
		if err := os.WriteFile(filepath.Join(folder, stray), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()

	size := headerSize("b", "newer") + int64(len("newer"))
	s = open(t, dir, one(mib))
	if b := statsOf(t, s, "b"); b.Objects != 4 {
		t.Errorf("%d objects, want 4", b.Objects)
	}
	if got := len(files(t, dir)); got != len(keys)+4 {
		t.Errorf("%d files, want the objects and 4 strays: %v", got, files(t, dir))
	}
	s.SetLimits(one(2*size + 4))
	got := map[string]string{}
	for _, key := range keys {
		got[key] = get(t, s, "b", key)
	}
	want := map[string]string{"oldest": "miss", "older": "miss", "newer": "newer", "newest": "newest"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("after shrinking to two objects:\n%s", diff)
	}
}

// TestForeignFilesAreAnError checks that Scan reports files that no store creates: opening one could block, or lead outside the
// folder.
func TestForeignFilesAreAnError(t *testing.T) {
	object := "objects/b/ab/" + strings.Repeat("0", 30)
	pipe := func(path string) error { return unix.Mkfifo(path, 0o600) }
	link := func(to string) func(string) error { return func(path string) error { return os.Symlink(to, path) } }
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "kept"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		at   string
		make func(path string) error
	}{
		"a pipe as an object":      {object, pipe},
		"a pipe of another name":   {"objects/b/ab/pipe", pipe},
		"a link as an object":      {object, link("/dev/zero")},
		"a dangling link":          {object, link("nowhere")},
		"a pipe as a folder":       {"objects/b/ab", pipe},
		"a link as a folder":       {"objects/b/ab", link(outside)},
		"a link as a bucket":       {"objects/b", link(outside)},
		"a link as all objects":    {"objects", link(outside)},
		"a link as tmp":            {"tmp", link(outside)},
		"a file in place of a dir": {"objects/b/ab", func(path string) error { return os.WriteFile(path, nil, 0o600) }},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, filepath.Dir(test.at)), 0o700), test.make(filepath.Join(dir, test.at))); err != nil {
				t.Fatal(err)
			}
			s, err := Open(Config{Dir: dir, Limits: one(mib)})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := s.Scan(t.Context()); err == nil || !strings.Contains(err.Error(), test.at) || !errors.Is(err, errForeign) {
				t.Errorf("scan says %v, want an error that names %s", err, test.at)
			}
			if _, err := os.Stat(filepath.Join(outside, "kept")); err != nil {
				t.Errorf("what the link leads to: %v", err)
			}
		})
	}
}
