// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package offheap

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/kubeflow/datacache/internal/words"
)

func TestBudget(t *testing.T) {
	b := NewBudget(100)
	for _, step := range []struct {
		name    string
		reserve int64
		release int64
		fails   bool
		used    int64
		peak    int64
	}{
		{name: "first", reserve: 60, used: 60, peak: 60},
		{name: "too much", reserve: 41, fails: true, used: 60, peak: 60},
		{name: "to the limit", reserve: 40, used: 100, peak: 100},
		{name: "nothing more", reserve: 1, fails: true, used: 100, peak: 100},
		{name: "would overflow", reserve: math.MaxInt64, fails: true, used: 100, peak: 100},
		{name: "negative", reserve: -1, fails: true, used: 100, peak: 100},
		{name: "some back", release: 60, used: 40, peak: 100},
		{name: "again", reserve: 60, used: 100, peak: 100},
	} {
		if err := b.Reserve(step.reserve); (err != nil) != step.fails {
			t.Fatalf("%s: %v", step.name, err)
		}
		b.Release(step.release)
		if b.Used() != step.used || b.Peak() != step.peak {
			t.Fatalf("%s: used %d, peak %d, want %d, %d", step.name, b.Used(), b.Peak(), step.used, step.peak)
		}
	}
}

func TestExhaustedError(t *testing.T) {
	err := fmt.Errorf("split 3: %w", NewBudget(5<<30).Reserve(6<<30))
	var full *ExhaustedError
	if !errors.As(err, &full) || *full != (ExhaustedError{Need: 6 << 30, Used: 0, Limit: 5 << 30}) {
		t.Fatalf("got %#v", full)
	}
	for _, part := range []string{"6442450944 bytes (6.0 GiB)", "used 0 bytes", "5368709120 bytes (5.0 GiB)"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q lacks %q", err, part)
		}
	}
}

// TestPart checks that what is reserved in a part counts in the whole too, once, however it is returned.
func TestPart(t *testing.T) {
	whole := NewBudget(10 << 20)
	part := whole.Part(4<<20, "raise the part")
	arena := NewArena(part)
	kept, err := arena.Alloc(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := arena.Alloc(2 << 20); err != nil || part.Used() != 3<<20 || whole.Used() != 3<<20 || whole.Heap() != 7<<20 {
		t.Fatalf("part %d, whole %d of which the heap may have %d, error %v", part.Used(), whole.Used(), whole.Heap(), err)
	}
	if err := part.Reserve(2 << 20); err == nil || !strings.HasSuffix(err.Error(), "raise the part") {
		t.Errorf("more than the part: %v", err)
	}
	if err := whole.Reserve(7 << 20); err != nil {
		t.Fatal(err)
	}
	if err := part.Reserve(1); err == nil || part.Used() != 3<<20 || !strings.Contains(err.Error(), "raise the memory limit") {
		t.Errorf("more than the whole: %v, part %d", err, part.Used())
	}
	arena.Discard(kept)
	if part.Used() != 2<<20 || whole.Used() != 9<<20 {
		t.Errorf("one allocation discarded: part %d, whole %d", part.Used(), whole.Used())
	}
	arena.Release()
	if part.Used() != 0 || whole.Used() != 7<<20 || whole.Heap() != 10<<20 || part.Peak() != 3<<20 {
		t.Errorf("arena released: part %d, peak %d, whole %d, heap %d", part.Used(), part.Peak(), whole.Used(), whole.Heap())
	}
}

func TestBudgetConcurrent(t *testing.T) {
	b := NewBudget(1000)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range int64(2000) {
				if b.Reserve(i%400) == nil {
					b.Release(i % 400)
				}
			}
		})
	}
	wg.Wait()
	if b.Used() != 0 || b.Peak() > 1000 || b.Peak() < 399 {
		t.Errorf("used %d, peak %d", b.Used(), b.Peak())
	}
}

func TestArena(t *testing.T) {
	b := NewBudget(1 << 30)
	a := NewArena(b)
	total, seen := int64(0), map[*byte]bool{}
	for _, n := range []int64{64, 4 << 20, 128, ownRegion, 63 << 20, ownRegion - 64, ownRegion + 64, 30 << 20, 64} {
		m, err := a.Alloc(n)
		if err != nil {
			t.Fatalf("alloc %d: %v", n, err)
		}
		total += n
		if int64(len(m)) != n || uintptr(unsafe.Pointer(&m[0]))%64 != 0 || seen[&m[0]] {
			t.Fatalf("alloc %d: %d bytes at %p", n, len(m), &m[0])
		}
		seen[&m[0]] = true
		for i := 0; i < len(m); i += 32 {
			if m[i] != 0 {
				t.Fatalf("alloc %d: byte %d is %d: memory was given out twice", n, i, m[i])
			}
			m[i] = 0xAA
		}
		if b.Used() != total || a.Bytes() != total {
			t.Fatalf("after %d: budget %d, arena %d, want %d", n, b.Used(), a.Bytes(), total)
		}
		a.Trim()
	}
	if !a.Retain() {
		t.Fatal("retain of a live arena fails")
	}
	a.Release()
	if b.Used() != total {
		t.Fatalf("a release that is not the last gave memory back: used %d", b.Used())
	}
	a.Release()
	if b.Used() != 0 {
		t.Fatalf("used %d after the last release", b.Used())
	}
	if a.Retain() {
		t.Error("retain after the last release")
	}
	if _, err := a.Alloc(64); !errors.Is(err, ErrReleased) || b.Used() != 0 {
		t.Errorf("alloc after the last release: %v, used %d", err, b.Used())
	}
}

func TestArenaRefuses(t *testing.T) {
	b := NewBudget(1000)
	a := NewArena(b)
	defer a.Release()
	if _, err := a.Alloc(960); err != nil {
		t.Fatal(err)
	}
	var full *ExhaustedError
	if _, err := a.Alloc(64); !errors.As(err, &full) || full.Used != 960 || full.Need != 64 || full.Limit != 1000 {
		t.Fatalf("past the limit: %v", err)
	}
	if b.Used() != 960 {
		t.Fatalf("a refused alloc took %d bytes", b.Used()-960)
	}
	b.Release(64)
	if _, err := a.Alloc(64); err != nil {
		t.Fatalf("after room was made: %v", err)
	}
	if err := b.Reserve(64); err == nil {
		t.Fatal("the budget should be full")
	}
	if err := b.Reserve(40); err != nil { // undoes the release above, since the arena releases what it reserved
		t.Fatal(err)
	}
}

// TestArenaResident checks that the process's resident memory follows the arenas: little more than their bytes, and freed with them.
func TestArenaResident(t *testing.T) {
	if resident(t) == 0 {
		t.Skip("no /proc/self/statm on this system")
	}
	const size, count = 300 << 10, 200
	b := NewBudget(1 << 30)
	before := resident(t)
	var arenas []*Arena
	for range count {
		a := NewArena(b)
		m, err := a.Alloc(size)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(m); i += 4096 {
			m[i] = 1
		}
		a.Trim()
		arenas = append(arenas, a)
	}
	full := resident(t) - before
	if want := int64(size * count); full < want*9/10 || full > want*3/2 {
		t.Errorf("%d arenas of %d bytes hold %s, want about %s", count, size, words.ExactBytes(full), words.ExactBytes(want))
	}
	for _, a := range arenas {
		a.Release()
	}
	if left := resident(t) - before; left > size*count/10 {
		t.Errorf("%s are held after the last release", words.ExactBytes(left))
	}
}

// resident is the process's resident memory in bytes, 0 where the system doesn't report it.
func resident(t *testing.T) int64 {
	t.Helper()
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(data), &size, &pages); err != nil {
		t.Fatalf("statm %q: %v", data, err)
	}
	return pages * int64(os.Getpagesize())
}
