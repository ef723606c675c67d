// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestManyObjects measures what OBJECTCACHE_OBJECTS objects cost a store: the index in memory, a start, and an eviction. The files are
// empty, since none of these opens them. It writes a table to the file OBJECTCACHE_MANY, if it is set.
func TestManyObjects(t *testing.T) { // not parallel: it measures CPU time and the heap
	text := os.Getenv("OBJECTCACHE_OBJECTS")
	if text == "" {
		t.Skip("OBJECTCACHE_OBJECTS=1000000 asks for it: it makes that many files")
	}
	objects, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("OBJECTCACHE_OBJECTS=%q: want a number: %v", text, err)
	}
	const evicted = 50_000
	limits := Limits{Total: 1 << 40, Objects: objects, Quotas: map[string]int64{"b": 1 << 40}}
	dir := t.TempDir()
	fill(t, dir, limits, objects)

	held, began, before := heap(), time.Now(), cpu(t)
	s, err := Open(Config{Dir: dir, Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	took, used := time.Since(began), cpu(t)-before
	if got := s.Stats()[0].Objects; got != objects {
		t.Fatalf("%d objects, want %d", got, objects)
	}
	memory := heap() - held
	limits.Objects -= evicted
	before = cpu(t)
	s.SetLimits(limits)
	each := (cpu(t) - before) / evicted
	if got := s.Stats()[0].Objects; got != limits.Objects {
		t.Errorf("%d objects after an eviction, want %d", got, limits.Objects)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "| %.1f million objects on a node | |\n|---|---|\n", float64(objects)/1e6)
	fmt.Fprintf(&out, "| index, in memory | %d MB, %d bytes an object |\n", memory/1e6, memory/objects)
	fmt.Fprintf(&out, "| start: names and sizes are listed | %.1f CPU-s, %.0f s |\n", used.Seconds(), took.Seconds())
	fmt.Fprintf(&out, "| eviction of an object | %d us of CPU |\n", each.Microseconds())
	fmt.Print(out.String())
	if path := os.Getenv("OBJECTCACHE_MANY"); path != "" {
		if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// fill makes the files of objects.
func fill(t *testing.T, dir string, limits Limits, objects int64) {
	t.Helper()
	s, err := Open(Config{Dir: dir, Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range 256 {
		if err := os.MkdirAll(filepath.Join(dir, "objects", "b", fmt.Sprintf("%02x", i)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(objects) {
		var id identity
		binary.BigEndian.PutUint64(id[:], (i+1)*0x9E3779B97F4A7C15)
		if err := os.WriteFile(s.path("b", id), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// cpu is the CPU time of this process.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
