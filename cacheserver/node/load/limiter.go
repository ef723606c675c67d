// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"math"
	"runtime"
	"sync"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/source"
)

const (
	// coreBytes is the memory for decoding per core.
	coreBytes = 32 << 20
	// spareBytes is the additional memory that all decoding together may use: what a process leaves unused of 64 MiB.
	spareBytes = 24 << 20
	// keptBytes is how much of a core's memory stays mapped for the next row group.
	keptBytes = 28 << 20
	// mostGuessed is how many splits are admitted at a time before one is loaded: their estimates may be far too low.
	mostGuessed = 2
)

// Limiter admits splits to loading as long as there is room for them in the memory budget, and bounds how many of them are decoded
// concurrently: one per core, and as many as fit in 32 MiB per core of memory for decoding, not counting the rows. A row group that needs
// more than the total is decoded alone. It also owns the buffers for decoding. The nodes of a process share one. It is safe for concurrent
// use; make it with NewLimiter.
//
// Loading ends, with all rows or with an error that is real. A split that waits for admission holds no memory. One that is admitted waits for
// no admission: only for its store, which fails at some time, and for splits that are being decoded, which wait for nothing. So it ends, and
// wakes those that wait; the first of them is admitted whatever the estimates say, if it is then the only one. Where a split finds no room for
// its rows while others are loaded, it gives up its memory, waits to be admitted again, and from then on one less is admitted at a time. That
// happens at most twice as often as splits may be admitted at a time: with one at a time, each has had the memory for itself, and if there was
// no room, there is none.
type Limiter struct {
	cores    int
	capacity int64
	buffers  *source.Buffers
	again    sync.Mutex // held while a split is decoded again for a chunk of it

	mu       sync.Mutex
	changed  *sync.Cond
	used     int64
	running  int // number of row groups being decoded
	loads    int // number of loads in progress
	admitted int // number of splits admitted and not ended
	most     int // of admitted: see retreat
	number   int64
	decoding int64 // memory for decoding of those admitted
	expected int64 // estimate of the rows of those admitted that are not in the budget yet
	aside    int64 // memory that is reserved for decoding a split again: see setAside
	asides   int   // number of loads that have set it aside
}

// NewLimiter returns a limiter for the cores of this process.
func NewLimiter() *Limiter {
	cores := runtime.GOMAXPROCS(0)
	w := &Limiter{
		cores: cores, capacity: int64(cores)*coreBytes + spareBytes, most: math.MaxInt, buffers: source.NewMappedBuffers(int64(cores) * keptBytes),
	}
	w.changed = sync.NewCond(&w.mu)
	return w
}

// load registers a load until done is called, which frees the buffers after the last one.
func (w *Limiter) load() (done func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loads++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.loads--; w.loads == 0 {
			w.most = math.MaxInt
			w.buffers.Close()
			w.changed.Broadcast()
		}
	}
}

// setAside reserves memory for decoding any split of a load again, until free is called. Splits are decoded again one at a time, so all loads set
// aside the same memory: as much as the one that needs the most.
func (w *Limiter) setAside(budget *offheap.Budget, n int64) (free func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := budget.Reserve(max(n-w.aside, 0)); err != nil {
		return nil, err
	}
	w.aside = max(w.aside, n)
	w.asides++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.asides--; w.asides == 0 {
			budget.Release(w.aside)
			w.aside = 0
		}
	}, nil
}

// forAgain is the budget for decoding a split again: what was set aside for it or, if nothing was, the whole one.
func (w *Limiter) forAgain(budget *offheap.Budget) *offheap.Budget {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.aside == 0 {
		return budget
	}
	return budget.Prepaid(w.aside)
}

// Idle waits until no load is in progress, or ctx ends.
func (w *Limiter) Idle(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.broadcastAtEnd(ctx)()
	for w.loads > 0 && ctx.Err() == nil {
		w.changed.Wait()
	}
}

// broadcastAtEnd wakes all waiters of changed when ctx ends. The caller calls stop when it does not wait any more.
func (w *Limiter) broadcastAtEnd(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.changed.Broadcast()
	})
}

// begin waits until n bytes may be used; done returns them. Requests are served in order, so none starves.
func (w *Limiter) begin(n int64) (done func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.running > 0 && (w.used+n > w.capacity || w.running == w.cores) {
		w.changed.Wait()
	}
	w.used += n
	w.running++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.used -= n
		w.running--
		w.changed.Broadcast()
	}
}

// need is the memory, in bytes, for loading a split.
type need struct {
	compressed, decoding int64 // until it is loaded
	pages                int64 // the part of decoding for pages
	rows                 int64 // estimate of the bytes of its rows that are in memory at a time
	window               int64 // bytes of a column chunk that are read at a time; 0: the whole row group is prefetched
	guessed              bool  // no split is loaded that confirms the estimates
}

func (n need) working() int64 { return n.compressed + n.decoding }

// admission is the place of a split among those that are loaded. Its memory for loading is reserved until end.
type admission struct {
	limiter *Limiter
	budget  *offheap.Budget
	need    need
	number  int64 // of admissions up to this one
	alone   bool  // no other was admitted and not ended at the time
	pages   int64 // that are decoded
}

// room makes room for n more bytes of pages, or fewer if n is negative. Pages that take more than was estimated are reserved in the budget.
func (a *admission) room(n int64) error {
	w := a.limiter
	w.mu.Lock()
	defer w.mu.Unlock()
	more := max(a.pages+n-a.need.pages, 0) - max(a.pages-a.need.pages, 0)
	if more > 0 {
		if err := a.budget.Reserve(more); err != nil {
			return noRoom(err, "for its pages", "cache fewer columns, or write the table with smaller pages")
		}
	}
	a.pages += n
	if more == 0 {
		return nil
	}
	a.need.decoding += more
	w.decoding += more
	w.limitLocked(a.budget)
	if more < 0 {
		a.budget.Release(-more)
		w.changed.Broadcast()
	}
	return nil
}

// admit waits until there is room for loading a split and its rows, as far as estimates tell. If none is admitted, it only reserves the
// memory for loading; if that fails, it returns the budget's error.
func (w *Limiter) admit(ctx context.Context, budget *offheap.Budget, estimate func() need) (*admission, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.broadcastAtEnd(ctx)()
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		n, alone, most := estimate(), w.admitted == 0, w.most
		if n.guessed {
			most = min(most, mostGuessed)
		}
		if alone || w.admitted < most && n.working()+n.rows+w.expected <= budget.Free() {
			err := budget.Reserve(n.working())
			if err != nil && alone {
				return nil, err
			}
			if err == nil {
				w.number++
				a := &admission{limiter: w, budget: budget, need: n, number: w.number, alone: alone}
				w.countLocked(1, n, budget)
				return a, nil
			}
		}
		w.changed.Wait()
	}
}

// countLocked counts n more admitted splits, or fewer.
func (w *Limiter) countLocked(n int64, of need, budget *offheap.Budget) {
	w.admitted += int(n)
	w.decoding += n * of.decoding
	w.expected += n * of.rows
	w.limitLocked(budget)
}

// limitLocked unmaps buffers that no admitted split needs, and keeps the Go heap within what the budget leaves besides rows and decoding.
func (w *Limiter) limitLocked(budget *offheap.Budget) {
	w.buffers.SetLimit(min(int64(w.cores)*keptBytes, w.decoding))
	budget.LimitHeap(w.decoding)
}

// built says how many bytes of the split's rows are in the budget.
func (a *admission) built(bytes, estimate int64) {
	w := a.limiter
	w.mu.Lock()
	defer w.mu.Unlock()
	left := max(estimate-bytes, 0)
	w.expected += left - a.need.rows
	a.need.rows = left
}

// end gives the split's place and memory for loading to others.
func (a *admission) end() {
	w := a.limiter
	w.mu.Lock()
	defer w.mu.Unlock()
	w.countLocked(-1, a.need, a.budget)
	a.budget.Release(a.need.working())
	w.changed.Broadcast()
}

// retreat reports whether a split that found no room for its rows should be loaded again after end, since others were loaded beside it;
// fewer are admitted then.
func (a *admission) retreat() bool {
	w := a.limiter
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.alone && a.number == w.number {
		return false
	}
	w.most = max(min(w.most, w.admitted)-1, 1)
	return true
}
