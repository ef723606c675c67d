// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package disktest damages files that a server has written and reads back after a restart.
package disktest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// Variable is the environment variable with the number of rounds of each test that damages files.
const Variable = "DATACACHE_DAMAGE"

// Rounds runs a test with the random numbers of consecutive seeds: few of them, or as many as Variable says.
func Rounds(t *testing.T, few int, round func(t *testing.T, r *rand.Rand)) {
	t.Helper()
	n := few
	if text := os.Getenv(Variable); text != "" { //nolint:forbidigo // how often a test runs is said to the test alone
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s=%q: want a number of rounds", Variable, text)
		}
	}
	for _, seed := range seedtest.Seeds(t, uint64(n)) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			round(t, rand.New(rand.NewPCG(seed, 0)))
		})
	}
}

// Files lists the regular files below a folder in a fixed order.
func Files(t *testing.T, dir string) (files []string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return files
}

// damage is one way to damage a file. other is another one of the same kind.
type damage struct {
	name string
	do   func(r *rand.Rand, file, other string) error
}

// Ways to damage a file. None of them makes a file valid that holds other bytes than the server wrote there.
var ways = []damage{
	{"exchanged", func(_ *rand.Rand, file, other string) error {
		return errors.Join(os.Rename(file, file+"~"), os.Rename(other, file), os.Rename(file+"~", other))
	}},
	{"a copy of another", func(_ *rand.Rand, file, other string) error { return rewrite(other, file, nil) }},
	{"missing", func(_ *rand.Rand, file, _ string) error { return os.Remove(file) }},
	{"empty", func(_ *rand.Rand, file, _ string) error { return os.Truncate(file, 0) }},
	{"cut", func(r *rand.Rand, file, _ string) error {
		return rewrite(file, file, func(b []byte) []byte { return b[:r.IntN(len(b))] })
	}},
	{"extended by zeros", func(r *rand.Rand, file, _ string) error {
		return rewrite(file, file, func(b []byte) []byte { return append(b, make([]byte, 1+r.IntN(1<<16))...) })
	}},
	{"extended by itself", func(_ *rand.Rand, file, _ string) error {
		return rewrite(file, file, func(b []byte) []byte { return append(b, b...) })
	}},
	{"a flipped bit", func(r *rand.Rand, file, _ string) error {
		return rewrite(file, file, func(b []byte) []byte { b[r.IntN(len(b))] ^= 1 << r.IntN(8); return b })
	}},
	{"the first half of another", func(_ *rand.Rand, file, other string) error {
		head, err := os.ReadFile(other)
		if err != nil {
			return err
		}
		return rewrite(file, file, func(b []byte) []byte { copy(b[:len(b)/2], head); return b })
	}},
	{"random bytes", func(r *rand.Rand, file, _ string) error {
		return rewrite(file, file, func(b []byte) []byte {
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			return b
		})
	}},
	{"a named pipe", func(_ *rand.Rand, file, _ string) error {
		return errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600))
	}},
	{"an empty folder", func(_ *rand.Rand, file, _ string) error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o700)) }},
	{"a folder", func(_ *rand.Rand, file, _ string) error {
		return errors.Join(os.Remove(file), os.MkdirAll(filepath.Join(file, "x"), 0o700))
	}},
	{"a link to another", func(_ *rand.Rand, file, other string) error {
		return errors.Join(os.Remove(file), os.Symlink(other, file))
	}},
	{"a dangling link", func(_ *rand.Rand, file, _ string) error {
		return errors.Join(os.Remove(file), os.Symlink("nowhere", file))
	}},
	{"a link to /dev/zero", func(_ *rand.Rand, file, _ string) error {
		return errors.Join(os.Remove(file), os.Symlink("/dev/zero", file))
	}},
}

// Ways are the names of the ways in which Damage damages a file.
func Ways() (names []string) {
	for _, w := range ways {
		names = append(names, w.name)
	}
	return names
}

// Damage damages a file in one of the Ways; others are files of the same kind, one of which may be used in its place.
func Damage(t *testing.T, r *rand.Rand, way, file string, others []string) {
	t.Helper()
	others = slices.DeleteFunc(slices.Clone(others), func(o string) bool { return o == file })
	w := ways[slices.Index(Ways(), way)]
	if err := w.do(r, file, others[r.IntN(len(others))]); err != nil {
		t.Fatalf("%s: %s: %v", file, way, err)
	}
}

// rewrite writes the bytes of a file, changed, to another one.
func rewrite(from, to string, change func([]byte) []byte) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if change != nil && len(text) > 0 {
		text = change(bytes.Clone(text))
	}
	return os.WriteFile(to, text, 0o600)
}
