// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestPrepareGivesTheFolderAway(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("chown needs root")
	}
	outside := t.TempDir()
	dir := filepath.Join(t.TempDir(), "new", "objects")
	inside := filepath.Join(dir, "objects", "file")
	prepare := func() {
		t.Helper()
		cmd := root(func(string) string { return "" })
		cmd.SetArgs([]string{"prepare", "--dir", dir, "--user", "65532"})
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []func() error{
		func() error { return nil },
		func() error { // as a server that ran as root leaves it
			if err := os.Chown(dir, 0, 0); err != nil {
				return err
			}
			if err := os.Mkdir(filepath.Dir(inside), 0o700); err != nil {
				return err
			}
			if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
				return err
			}
			return os.WriteFile(inside, nil, 0o600)
		},
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
		prepare()
		if got := owner(t, dir); got != 65532 {
			t.Errorf("the folder belongs to user %d", got)
		}
	}
	if got := owner(t, inside); got != 65532 {
		t.Errorf("a file in the folder belongs to user %d", got)
	}
	if got := owner(t, outside); got != 0 {
		t.Errorf("what a link in the folder points to belongs to user %d now", got)
	}
}

func TestPrepareFlagsAreChecked(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{"": "--dir: missing", "--dir d --user 0": "--user: 0"} {
		cmd := root(func(string) string { return "" })
		cmd.SetArgs(append([]string{"prepare"}, strings.Fields(args)...))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q in it", args, err, want)
		}
	}
}

func owner(t *testing.T, path string) uint32 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Uid
}

func TestPrepareGivesTheFolderOfHostsAway(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("chown needs root")
	}
	dir := filepath.Join(t.TempDir(), "certs.d")
	others := filepath.Join(dir, "_default", "hosts.toml")
	if err := os.MkdirAll(filepath.Dir(others), 0o755); err != nil { //nolint:gosec // containerd's folder is readable by all
		t.Fatal(err)
	}
	if err := os.WriteFile(others, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := root(func(string) string { return "" })
	cmd.SetArgs([]string{"prepare", "--dir", t.TempDir(), "--user", "65532", "--write-hosts", dir})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]uint32{dir: 0, filepath.Dir(others): 65532, others: 0} {
		if got := owner(t, path); got != want {
			t.Errorf("%s belongs to user %d, want %d", path, got, want)
		}
	}
}
