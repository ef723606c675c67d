// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package offheap is memory outside of the Go heap, all of which is reserved in a budget: arenas that are freed as a whole, and regions of them
// that may be dropped and read again.
package offheap

import (
	lists "container/list"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kubeflow/datacache/internal/words"
)

const (
	hugePage   = 2 << 20  // huge page size of x86-64, and of arm64 with 4 KiB pages
	regionSize = 64 << 20 // address space mapped at a time; pages are only touched when they are used
	ownRegion  = 16 << 20 // bodies of at least this size get their own mapping
)

// ErrReleased is returned by what has references after its last release.
var ErrReleased = errors.New("used after its last release")

// PageSize is the unit of the memory of arenas that are Paged, so that it can be read with O_DIRECT.
const PageSize = 4 << 10

// Arena allocates memory outside the Go heap that is written once and freed as a whole. Every byte is reserved in the budget before
// it is mapped. It is safe for concurrent use.
//
// It starts with one reference, the caller's; the last Release unmaps the memory and returns it to the budget.
type Arena struct {
	budget *Budget
	paged  bool    // allocate whole pages
	pool   *Blocks // nil: it maps its memory itself
	block  int     // bytes of a block
	refs   atomic.Int64

	mu       sync.Mutex
	regions  [][]byte // every mapping
	free     []byte   // the unused rest of the newest shared region
	reserved int64
	blocks   [][]byte   // of the pool
	idle     lists.List // of *Region: those in memory that nobody holds, the longest unused first
}

// NewArena makes an empty arena, without mapping anything.
func NewArena(budget *Budget) *Arena {
	a := &Arena{budget: budget}
	a.refs.Store(1)
	return a
}

// Budget is the budget in which the arena reserves its memory.
func (a *Arena) Budget() *Budget { return a.budget }

// Paged makes the arena allocate in multiples of PageSize, as regions need. It must be called before the arena is used.
func (a *Arena) Paged() *Arena {
	a.paged = true
	a.budget.addEvictor(a)
	return a
}

// Bytes is the number of bytes that the arena has reserved in the budget: bodies and headers, each padded to 64 bytes.
func (a *Arena) Bytes() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reserved
}

// Retain adds a reference, unless the last one has been released already; then it returns false.
func (a *Arena) Retain() bool {
	return Retain(&a.refs)
}

// Release drops a reference. The last one unmaps the memory: slices of it must not be used any more.
func (a *Arena) Release() {
	if a.refs.Add(-1) == 0 {
		a.unmap()
	}
}

// Alloc reserves and maps n bytes, zeroed unless they are of a pool. They begin at a multiple of 64, as Arrow recommends, if n always is one.
func (a *Arena) Alloc(n int64) ([]byte, error) {
	if a.paged {
		n = (n + PageSize - 1) &^ (PageSize - 1)
	}
	if a.pool != nil && int(n) <= a.block {
		return a.allocBlock(int(n))
	}
	if err := a.budget.Reserve(n); err != nil {
		return nil, err
	}
	b, err := a.take(int(n))
	if err != nil {
		a.budget.Release(n)
		return nil, fmt.Errorf("map %s: %w", words.ExactBytes(n), err)
	}
	a.budget.countMapped(n)
	Populate(wholePages(b))
	return b, nil
}

// Discard returns the memory of an allocation, which must not be used any more, to the kernel and to the budget. Its addresses are not used
// again.
func (a *Arena) Discard(b []byte) {
	n := int64(len(b))
	if pages := wholePages(b); len(pages) > 0 {
		// This is only advice: if the kernel declines, the memory stays mapped until the arena is released.
		_ = unix.Madvise(pages, unix.MADV_DONTNEED)
	}
	a.mu.Lock()
	a.reserved -= n
	a.mu.Unlock()
	a.budget.countMapped(-n)
	a.budget.Release(n)
}

// wholePages returns the pages that are entirely within b.
func wholePages(b []byte) []byte {
	page := uintptr(unix.Getpagesize())
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	skip, end := -at&(page-1), (at+uintptr(len(b)))&(page-1)
	if skip+end >= uintptr(len(b)) {
		return nil
	}
	return b[skip : uintptr(len(b))-end]
}

func (a *Arena) take(n int) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refs.Load() <= 0 {
		return nil, ErrReleased
	}
	if n >= ownRegion || a.pool != nil {
		b, err := a.mapLocked(n)
		if err != nil {
			return nil, err
		}
		a.reserved += int64(n)
		return b[:n:n], nil
	}
	if n > len(a.free) {
		fresh, err := a.mapLocked(regionSize)
		if err != nil {
			return nil, err
		}
		a.trimLocked()
		a.free = fresh
	}
	b := a.free[:n:n]
	a.free = a.free[n:]
	a.reserved += int64(n)
	return b, nil
}

// mapLocked maps n bytes that are aligned to a huge page, in case the system always uses huge pages.
func (a *Arena) mapLocked(n int) ([]byte, error) {
	whole, err := unix.Mmap(-1, 0, n+hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|mapNoReserve)
	if err != nil {
		return nil, err
	}
	a.regions = append(a.regions, whole)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(whole))) & (hugePage - 1))
	b := whole[skip : skip+n]
	advisePages(b)
	return b, nil
}

// Trim returns the unused end of the last, partly used huge page to the kernel, so that many small arenas don't each take 2 MiB.
func (a *Arena) Trim() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trimLocked()
}

func (a *Arena) trimLocked() {
	page := uintptr(unix.Getpagesize())
	at := uintptr(unsafe.Pointer(unsafe.SliceData(a.free)))
	skip := -at & (page - 1)
	end := -at & (hugePage - 1)
	if skip < end && end <= uintptr(len(a.free)) {
		// This is only advice: if the kernel declines, at most one huge page more stays mapped.
		_ = unix.Madvise(a.free[skip:end], unix.MADV_DONTNEED)
	}
}

func (a *Arena) unmap() {
	a.budget.removeEvictor(a)
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.idle.Len() > 0 {
		a.idle.Front().Value.(*Region).wakeLocked()
	}
	for _, r := range a.regions {
		if err := unix.Munmap(r); err != nil {
			panic(fmt.Sprintf("offheap: unmap of a region that was mapped: %v", err))
		}
	}
	if a.pool != nil {
		a.pool.put(a.blocks)
		a.blocks = nil
	}
	a.budget.countMapped(-a.reserved)
	a.budget.Release(a.reserved)
	a.regions, a.free, a.reserved = nil, nil, 0
}

// Retain increments a count of references that is still above zero; otherwise it returns false.
func Retain(refs *atomic.Int64) bool {
	for {
		n := refs.Load()
		if n <= 0 {
			return false
		}
		if refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}
