// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package offheap

import (
	"cmp"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kubeflow/datacache/internal/words"
)

// Budget counts reserved bytes against a limit. All methods except Keep are safe for concurrent use.
type Budget struct {
	limit   int64
	kept    int64 // for clients
	used    atomic.Int64
	peak    atomic.Int64
	clients atomic.Int64 // the part of used that Clients reserved
	mapped  atomic.Int64 // the part of used that arenas reserved

	// evictable is the part of used that evictors can free at once: regions that nobody holds, blocks that no arena uses, and what
	// Clients.Evictable counts.
	evictable atomic.Int64

	mu       sync.Mutex
	evictors []evictor
	heap     int64 // the part of used that ReserveHeap reserved
	left     int64 // bytes of the limit that LimitHeap left to the Go heap, besides heap; negative: it was not called

	whole *Budget // the budget that this one is a part of; nil: none
	paid  int64   // bytes that are reserved in whole already: only what is used above them is reserved there
	each  int64   // limit of the part that Of returns for an owner; 0: no limit
	of    map[string]*Budget
	raise string // advice in errors on how to get more; "": raise the memory limit
}

// evictor frees up to n bytes of what it can free at once, which it has counted in evictable.
type evictor interface{ evict(n int64) (freed int64) }

// NewBudget returns a budget of limit bytes.
func NewBudget(limit int64) *Budget {
	return &Budget{limit: limit, left: -1}
}

// Part returns a budget that limits some of this budget's reservations: what is reserved in the part is reserved here too. raise says in errors how
// to get more. Memory that arenas of the part can drop is dropped for reservations in the part, and not for others.
func (b *Budget) Part(limit int64, raise string) *Budget {
	return &Budget{limit: limit, left: -1, whole: b, raise: raise}
}

// Prepaid returns a budget whose first n bytes the caller has reserved in this one, and releases here when the other one is not used any more. More
// than these are reserved here.
func (b *Budget) Prepaid(n int64) *Budget {
	return &Budget{limit: b.limit, kept: b.kept, left: -1, whole: b, paid: n}
}

// unpaid is how much of n bytes, which come after used ones, is above what is paid.
func (b *Budget) unpaid(used, n int64) int64 { return max(used+n-b.paid, 0) - max(used-b.paid, 0) }

// Each sets the limit in bytes of the parts that Of returns. It must be called before the budget is used.
func (b *Budget) Each(limit int64) *Budget {
	b.each, b.of = limit, map[string]*Budget{}
	return b
}

// EachLimit is the limit of one owner, 0 if there is none.
func (b *Budget) EachLimit() int64 { return b.each }

// Of returns the part that an owner has of the budget, always the same one; the budget itself if owners have no limit. The first caller says how
// this owner gets more.
func (b *Budget) Of(owner, raise string) *Budget {
	if b.each == 0 {
		return b
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of[owner] == nil {
		b.of[owner] = b.Part(b.each, raise)
	}
	return b.of[owner]
}

// Keep sets n bytes aside for clients, which Reserve then leaves free. It must be called before the budget is used.
func (b *Budget) Keep(n int64) *Budget {
	b.kept = n
	return b
}

// ExhaustedError says that a reservation exceeded the budget. All fields are bytes.
type ExhaustedError struct {
	Need  int64 // requested
	Used  int64 // reserved at the time of the request
	Limit int64
	Kept  int64  // part of Limit set aside for clients and unavailable to this request
	Most  int64  // maximum that one client may reserve at a time; 0: the limit was reached
	Raise string // how to get more; "": by a higher memory limit or more data nodes
}

// Error includes the numbers in bytes and in binary units.
func (e *ExhaustedError) Error() string {
	if e.Most > 0 {
		return fmt.Sprintf("needed %s, one client may have %s at a time; used %s of %s",
			words.ExactBytes(e.Need), words.ExactBytes(e.Most), words.ExactBytes(e.Used), words.ExactBytes(e.Limit))
	}
	return fmt.Sprintf("memory limit reached: needed %s, used %s of %s: %s",
		words.ExactBytes(e.Need), words.ExactBytes(e.Used), words.ExactBytes(e.Limit), cmp.Or(e.Raise, "raise the memory limit, add data nodes, or select fewer columns or rows"))
}

// Reserve reserves n bytes; if they don't fit, it reserves nothing and returns an *[ExhaustedError].
func (b *Budget) Reserve(n int64) error { return b.reserve(n, b.limit-b.kept) }

func (b *Budget) reserve(n, limit int64) error {
	if n < 0 {
		return fmt.Errorf("reserve %d bytes: negative", n)
	}
	var used int64
	for {
		used = b.used.Load()
		if n > limit-used {
			if b.evict(n-(limit-used)) > 0 {
				continue
			}
			return &ExhaustedError{Need: n, Used: used, Limit: b.limit, Kept: b.limit - limit, Raise: b.raise}
		}
		if b.used.CompareAndSwap(used, used+n) {
			break
		}
	}
	if b.whole != nil {
		if err := b.whole.Reserve(b.unpaid(used, n)); err != nil {
			b.used.Add(-n)
			return err
		}
	}
	b.raisePeak(b.used.Load())
	return nil
}

// countMapped adds n to the bytes that arenas have reserved.
func (b *Budget) countMapped(n int64) {
	for ; b != nil; b = b.whole {
		b.mapped.Add(n)
	}
}

// evict frees up to n bytes of what arenas can free.
func (b *Budget) evict(n int64) (freed int64) {
	if b.evictable.Load() == 0 {
		return 0
	}
	b.mu.Lock()
	arenas := slices.Clone(b.evictors)
	b.mu.Unlock()
	for _, a := range arenas {
		freed += a.evict(n - freed)
	}
	return freed
}

func (b *Budget) addEvictor(a evictor) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.evictors = append(b.evictors, a)
}

func (b *Budget) removeEvictor(a evictor) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.evictors = slices.DeleteFunc(b.evictors, func(e evictor) bool { return e == a })
}

// Free is the number of bytes that Reserve would reserve at most.
func (b *Budget) Free() int64 { return max(b.limit-b.kept-b.used.Load()+b.evictable.Load(), 0) }

// Release returns n reserved bytes.
func (b *Budget) Release(n int64) {
	for ; b != nil; b = b.whole {
		n = b.unpaid(b.used.Add(-n), n)
	}
}

// ReserveHeap reserves n bytes as Reserve does, for what lives long in the Go heap: the collector then leaves it so much more. Return them with
// ReleaseHeap.
func (b *Budget) ReserveHeap(n int64) error {
	err := b.Reserve(n)
	if err == nil {
		b.countHeap(n)
	}
	return err
}

// ReleaseHeap returns n bytes that ReserveHeap reserved.
func (b *Budget) ReleaseHeap(n int64) {
	b.countHeap(-n)
	b.Release(n)
}

func (b *Budget) countHeap(n int64) {
	for ; b != nil; b = b.whole {
		b.countOwnHeap(n)
	}
}

func (b *Budget) countOwnHeap(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.heap += n; b.left >= 0 {
		b.limitHeapLocked()
	}
}

// Used is the number of bytes currently reserved.
func (b *Budget) Used() int64 { return b.used.Load() }

// Peak is the highest number of bytes that were reserved at the same time.
func (b *Budget) Peak() int64 { return b.peak.Load() }

// Kept is the number of bytes set aside for clients.
func (b *Budget) Kept() int64 { return b.kept }

// Limit is the maximum number of reserved bytes.
func (b *Budget) Limit() int64 { return b.limit }

// Heap is the part of the limit that arenas have not mapped, which the Go heap may use.
func (b *Budget) Heap() int64 { return max(b.limit-b.mapped.Load(), 0) }

// heapSlack is the memory that the process uses in addition to what is reserved in the budget: code, goroutines, metrics, garbage.
const heapSlack = 48 << 20

// LimitHeap makes the garbage collector keep the Go heap within what the limit leaves besides arenas, which are outside the heap, and the
// bytes that others may use outside of it. Otherwise garbage could take as much memory again as clients' requests and responses.
func (b *Budget) LimitHeap(others int64) {
	if b.paid > 0 {
		b = b.whole
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = max(b.Heap()-others-b.heap, 0)
	b.limitHeapLocked()
}

func (b *Budget) limitHeapLocked() { debug.SetMemoryLimit(b.left + b.heap + heapSlack) }

func (b *Budget) raisePeak(n int64) {
	for {
		peak := b.peak.Load()
		if n <= peak || b.peak.CompareAndSwap(peak, n) {
			return
		}
	}
}
