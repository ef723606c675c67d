// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package reload

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var errEmpty = errors.New("empty")

func parse(text []byte) (string, error) {
	if len(text) == 0 {
		return "", errEmpty
	}
	return string(text), nil
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// opened returns a file that holds "one", and its path.
func opened(t *testing.T) (f *File[string], path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "file")
	write(t, path, "one")
	f, err := Open(path, parse)
	if err != nil {
		t.Fatal(err)
	}
	return f, path
}

func TestOpenRefusesABadFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	if _, err := Open(path, parse); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v, want %v", err, os.ErrNotExist)
	}
	write(t, path, "")
	if _, err := Open(path, parse); !errors.Is(err, errEmpty) || !strings.Contains(err.Error(), path) {
		t.Errorf("an empty file: %v, want %v with the path", err, errEmpty)
	}
}

func TestFresh(t *testing.T) {
	t.Parallel()
	f, path := opened(t)
	log := slog.New(slog.DiscardHandler)
	for _, step := range []struct {
		text  string
		every time.Duration
		want  string
	}{{"two", 0, "two"}, {"three", time.Hour, "two"}, {"four", 0, "four"}, {"", 0, "four"}, {"five", 0, "five"}} {
		write(t, path, step.text)
		if got := f.Fresh(step.every, log); got != step.want {
			t.Errorf("%q, read every %s: value %q, want %q", step.text, step.every, got, step.want)
		}
	}
}

func TestLook(t *testing.T) {
	t.Parallel()
	f, path := opened(t)
	var (
		logged bytes.Buffer
		seen   []string
		log    = slog.New(slog.NewTextHandler(&logged, nil))
	)
	steps := []struct {
		name     string
		change   func()
		want     string
		rejected bool
		seen     int // number of calls of changed so far
		logged   int // number of log lines so far
	}{
		{"nothing new", func() {}, "one", false, 0, 0},
		{"a new value", func() { write(t, path, "two") }, "two", false, 1, 1},
		{"a bad one", func() { write(t, path, "") }, "two", true, 1, 2},
		{"still bad", func() {}, "two", true, 1, 2},
		{"gone", func() { os.Remove(path) }, "two", true, 1, 2},
		{"good again", func() { write(t, path, "three") }, "three", false, 2, 3},
		{"gone again", func() { os.Remove(path) }, "three", true, 2, 4},
		{"back as it was", func() { write(t, path, "three") }, "three", false, 3, 5},
	}
	for _, step := range steps {
		step.change()
		f.look(log, func(value string) { seen = append(seen, value) })
		if f.Get() != step.want || f.Rejected() != step.rejected {
			t.Errorf("%s: value %q, rejected %v, want %q, %v", step.name, f.Get(), f.Rejected(), step.want, step.rejected)
		}
		if lines := strings.Count(logged.String(), "\n"); len(seen) != step.seen || lines != step.logged {
			t.Errorf("%s: changed called %d times, %d lines logged, want %d and %d", step.name, len(seen), lines, step.seen, step.logged)
		}
	}
}
