// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"
	"runtime/debug"
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
}

// NewBudget returns a budget of limit bytes.
func NewBudget(limit int64) *Budget {
	return &Budget{limit: limit}
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
	Kept  int64 // part of Limit set aside for clients and unavailable to this request
	Most  int64 // maximum that one client may reserve at a time; 0: the limit was reached
}

// Error includes the numbers in bytes and in binary units.
func (e *ExhaustedError) Error() string {
	if e.Most > 0 {
		return fmt.Sprintf("needed %s, one client may have %s at a time; used %s of %s",
			words.ExactBytes(e.Need), words.ExactBytes(e.Most), words.ExactBytes(e.Used), words.ExactBytes(e.Limit))
	}
	return fmt.Sprintf("memory limit reached: needed %s, used %s of %s: raise the memory limit, add data nodes, or select fewer columns or rows",
		words.ExactBytes(e.Need), words.ExactBytes(e.Used), words.ExactBytes(e.Limit))
}

// Reserve reserves n bytes; if they don't fit, it reserves nothing and returns an *[ExhaustedError].
func (b *Budget) Reserve(n int64) error { return b.reserve(n, b.limit-b.kept) }

func (b *Budget) reserve(n, limit int64) error {
	if n < 0 {
		return fmt.Errorf("reserve %d bytes: negative", n)
	}
	for {
		used := b.used.Load()
		if n > limit-used {
			return &ExhaustedError{Need: n, Used: used, Limit: b.limit, Kept: b.limit - limit}
		}
		if b.used.CompareAndSwap(used, used+n) {
			b.raisePeak(used + n)
			return nil
		}
	}
}

// Free is the number of bytes that Reserve would reserve at most.
func (b *Budget) Free() int64 { return max(b.limit-b.kept-b.used.Load(), 0) }

// Release returns n reserved bytes.
func (b *Budget) Release(n int64) {
	b.used.Add(-n)
}

// Used is the number of bytes currently reserved.
func (b *Budget) Used() int64 { return b.used.Load() }

// Peak is the highest number of bytes that were reserved at the same time.
func (b *Budget) Peak() int64 { return b.peak.Load() }

// Limit is the maximum number of reserved bytes.
func (b *Budget) Limit() int64 { return b.limit }

// Heap is the part of the limit that arenas have not mapped, which the Go heap may use.
func (b *Budget) Heap() int64 { return max(b.limit-b.mapped.Load(), 0) }

// heapSlack is the memory that the process uses in addition to what is reserved in the budget: code, goroutines, metrics, garbage.
const heapSlack = 48 << 20

// LimitHeap makes the garbage collector keep the Go heap within what the limit leaves besides arenas, which are outside the heap, and the
// bytes that others use outside of it. Otherwise garbage could take as much memory again as clients' requests and responses.
func (b *Budget) LimitHeap(others int64) { debug.SetMemoryLimit(max(b.Heap()-others, 0) + heapSlack) }

func (b *Budget) raisePeak(n int64) {
	for {
		peak := b.peak.Load()
		if n <= peak || b.peak.CompareAndSwap(peak, n) {
			return
		}
	}
}
