// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package offheap

import (
	lists "container/list"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kubeflow/datacache/internal/words"
)

// Region is memory of an arena whose content is also elsewhere. It may be dropped when others need room, unless it is held; the next hold reads
// it again. Its addresses stay reserved. While the memory is dropped, they can't be accessed: a use without a hold ends the process instead of
// finding wrong bytes. It is safe for concurrent use, and valid as long as the arena is.
type Region struct {
	arena  *Arena
	bytes  []byte
	read   func([]byte) error // fills bytes
	pinned atomic.Bool

	// Protected by the arena's mu.
	resident bool
	holds    int
	reading  chan struct{}  // closed when the read in progress ends; nil: there is none
	idle     *lists.Element // in the arena's idle: resident without holds
}

// Region makes a region of memory that Alloc returned. The arena must be Paged.
func (a *Arena) Region(bytes []byte, read func([]byte) error) *Region {
	r := &Region{arena: a, bytes: bytes, read: read, resident: true, holds: 1}
	r.Drop()
	return r
}

// NewRegion makes a region of n bytes, a multiple of PageSize, and returns their addresses. It reserves nothing until the region is held. The
// arena must be Paged.
func (a *Arena) NewRegion(n int64, read func([]byte) error) (*Region, []byte, error) {
	bytes, err := a.take(int(n))
	if err != nil {
		return nil, nil, fmt.Errorf("map %s: %w", words.ExactBytes(n), err)
	}
	a.mu.Lock()
	a.reserved -= n
	a.mu.Unlock()
	if err := hide(bytes); err != nil {
		return nil, nil, err
	}
	return &Region{arena: a, bytes: bytes, read: read}, bytes, nil
}

// Hold keeps the memory until Drop; if it was dropped before, Hold reads it.
func (r *Region) Hold() error {
	a := r.arena
	for {
		a.mu.Lock()
		switch {
		case r.resident:
			r.holdLocked()
			a.mu.Unlock()
			return nil
		case r.reading == nil:
			r.reading = make(chan struct{})
			a.mu.Unlock()
			return r.fill()
		}
		reading := r.reading
		a.mu.Unlock()
		<-reading
	}
}

// HoldResident is Hold for memory that was not dropped; otherwise it returns false.
func (r *Region) HoldResident() bool {
	r.arena.mu.Lock()
	defer r.arena.mu.Unlock()
	if !r.resident {
		return false
	}
	r.holdLocked()
	return true
}

// IsResident reports whether the memory is there.
func (r *Region) IsResident() bool {
	r.arena.mu.Lock()
	defer r.arena.mu.Unlock()
	return r.resident
}

// Pin makes the current hold the last one: the memory stays until the arena is released.
func (r *Region) Pin() { r.pinned.Store(true) }

// IsPinned reports whether Pin was called.
func (r *Region) IsPinned() bool { return r.pinned.Load() }

// holdLocked holds a region that is in memory.
func (r *Region) holdLocked() {
	r.holds++
	if r.idle != nil {
		r.wakeLocked()
	}
}

// fill reads the memory for the first holder.
func (r *Region) fill() error {
	a, n := r.arena, int64(len(r.bytes))
	err := r.mapMemory()
	if err == nil {
		if err = r.read(r.bytes); err != nil {
			_ = hide(r.bytes) // the error of the read says more
			a.budget.countMapped(-n)
			a.budget.Release(n)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	close(r.reading)
	r.reading = nil
	if err == nil {
		r.resident, r.holds = true, 1
		a.reserved += n
	}
	return err
}

// mapMemory reserves and maps the memory, which then has any content.
func (r *Region) mapMemory() error {
	a, n := r.arena, int64(len(r.bytes))
	if a.takeOver(r) {
		return nil
	}
	if err := a.budget.Reserve(n); err != nil {
		return err
	}
	if err := unix.Mprotect(r.bytes, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		a.budget.Release(n)
		return err
	}
	a.budget.countMapped(n)
	Populate(r.bytes)
	return nil
}

// mostLooked is how many regions takeOver looks at.
const mostLooked = 16

// takeOver gives r the pages of a region that would be dropped to make room, so that the kernel need not clear new ones. It returns false if there is
// room without, or no region of about the length.
func (a *Arena) takeOver(r *Region) bool {
	n := int64(len(r.bytes))
	if a.budget.limit-a.budget.kept-a.budget.Used() >= n {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	looked := 0
	for e := a.idle.Front(); e != nil && looked < mostLooked; e = e.Next() {
		looked++
		from := e.Value.(*Region)
		more := int64(len(from.bytes)) - n
		if more < 0 || more > n/4 {
			continue
		}
		if err := movePages(from.bytes[:n], r.bytes); err != nil {
			return false
		}
		from.freeLocked(n)
		return true
	}
	return false
}

// Drop ends a hold.
func (r *Region) Drop() {
	if r.pinned.Load() {
		return
	}
	a := r.arena
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.holds--; r.holds == 0 {
		r.idle = a.idle.PushBack(r)
		a.budget.evictable.Add(int64(len(r.bytes)))
	}
}

// wakeLocked removes the region from those that nobody holds.
func (r *Region) wakeLocked() {
	r.arena.idle.Remove(r.idle)
	r.idle = nil
	r.arena.budget.evictable.Add(-int64(len(r.bytes)))
}

// evict implements evictor: it drops the memory of regions that nobody holds, the longest unused first.
func (a *Arena) evict(n int64) (freed int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for freed < n && a.idle.Len() > 0 {
		r := a.idle.Front().Value.(*Region)
		r.freeLocked(0)
		freed += int64(len(r.bytes))
	}
	return freed
}

// Free drops the memory now, unless it was dropped or is held.
func (r *Region) Free() {
	r.arena.mu.Lock()
	defer r.arena.mu.Unlock()
	if r.idle != nil {
		r.freeLocked(0)
	}
}

// freeLocked drops the memory of a region that nobody holds, of which so many bytes were moved to another region.
func (r *Region) freeLocked(moved int64) {
	r.wakeLocked()
	if err := hide(r.bytes); err != nil {
		panic(fmt.Sprintf("offheap: protect memory that is mapped: %v", err))
	}
	r.resident = false
	size := int64(len(r.bytes))
	r.arena.reserved -= size
	r.arena.budget.countMapped(moved - size)
	r.arena.budget.Release(size - moved)
}

// hide returns the pages to the kernel and makes their addresses inaccessible.
func hide(memory []byte) error {
	if err := unix.Madvise(memory, unix.MADV_DONTNEED); err != nil {
		return fmt.Errorf("free %s: %w", words.ExactBytes(int64(len(memory))), err)
	}
	return unix.Mprotect(memory, unix.PROT_NONE)
}
