// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package reload

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestPathOfSomethingElse has the path be a folder, or a FIFO that nobody or somebody opens for writing, for a while: the last value must stay, the
// log must say why, and a later file must apply.
func TestPathOfSomethingElse(t *testing.T) {
	t.Parallel()
	fifo := func(t *testing.T, path string) {
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, become := range map[string]func(t *testing.T, path string){
		"a folder": func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		},
		"a FIFO": fifo,
		"a FIFO with a silent writer": func(t *testing.T, path string) {
			fifo(t, path)
			writer, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = writer.Close() })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, path := opened(t)
			var logged bytes.Buffer
			log := slog.New(slog.NewTextHandler(&logged, nil))
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			become(t, path)
			if _, err := Open(path, parse); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("opened: %v, want an error with the path", err)
			}
			if got := f.Fresh(0, log); got != "one" || !f.Rejected() || !strings.Contains(logged.String(), "want a file") {
				t.Errorf("value %q, rejected %v, logged %s", got, f.Rejected(), logged.String())
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			write(t, path, "one")
			if got := f.Fresh(0, log); got != "one" || f.Rejected() {
				t.Errorf("back as it was: value %q, rejected %v", got, f.Rejected())
			}
			write(t, path, "two")
			if got := f.Fresh(0, log); got != "two" || f.Rejected() {
				t.Errorf("a new file: value %q, rejected %v", got, f.Rejected())
			}
		})
	}
}
