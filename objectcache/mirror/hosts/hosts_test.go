// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWriteAndRemove(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "_default", "hosts.toml")
	if _, err := Write(dir, "http://127.0.0.1:1", ""); err != nil { // left behind by a process that was killed
		t.Fatal(err)
	}
	remove, err := Write(dir, "http://127.0.0.1:2", "PEM")
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(filepath.Dir(path), "datacache-ca.crt")); err != nil || string(text) != "PEM" {
		t.Errorf("the authorities: %q, %v", text, err)
	}
	if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), "ca = \"datacache-ca.crt\"") || !strings.Contains(string(text), `[host."http://127.0.0.1:2"]`) || strings.Contains(string(text), ":1") {
		t.Errorf("%s, %v", text, err)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after removal: %v", err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func TestForeignFilesStay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "_default", "hosts.toml")
	remove, err := Write(dir, "http://127.0.0.1:1", "")
	if err != nil {
		t.Fatal(err)
	}
	const foreign = "server = \"https://x\"\n"
	if err := os.WriteFile(path, []byte(foreign), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	if _, err := Write(dir, "http://127.0.0.1:1", ""); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("over a foreign file: %v, want an error that names it", err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != foreign {
		t.Errorf("the foreign file is %q, %v", text, err)
	}
}

// TestNoRegularFile has something else in place of hosts.toml: neither Write nor remove waits for it, and both name it.
func TestNoRegularFile(t *testing.T) {
	t.Parallel()
	for kind, place := range map[string]func(path string) error{
		"a pipe":   func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a link":   func(path string) error { return os.Symlink("/dev/zero", path) },
		"a folder": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, "_default", "hosts.toml")
			remove, err := Write(dir, "http://127.0.0.1:1", "")
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Remove(path), place(path)); err != nil {
				t.Fatal(err)
			}
			if err := remove(); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("remove: %v, want an error that names %s", err, path)
			}
			if _, err := Write(dir, "http://127.0.0.1:2", ""); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("Write: %v, want an error that names %s", err, path)
			}
		})
	}
}
