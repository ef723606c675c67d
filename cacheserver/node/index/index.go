// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package index keeps, in the memory of a data node, the indexes of the filters that clients ask for.
package index

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/pick"
	"github.com/kubeflow/datacache/cacheserver/work"
	"github.com/kubeflow/datacache/internal/words"
)

// Set is the indexes of filters over the rows of an assignment. Those that no stream uses are dropped, least recently used first, when
// another one needs the memory. It is safe for concurrent use.
type Set struct {
	budget  *offheap.Budget
	limit   int64 // bytes of all indexes
	metrics *ops.Metrics
	pool    *work.Pool      // evaluates filters
	ctx     context.Context // ends the building of indexes
	running sync.WaitGroup  // goroutines of Make

	mu      sync.Mutex
	held    map[string]*index
	builds  map[string]*build // by id; an index that is made for nobody any more may be missing
	making  map[*pending]bool // indexes being made, for which memory is reserved
	made    chan struct{}     // closed, and replaced, when one of these was made or given up
	used    int64             // bytes reserved in budget
	working int64             // bytes reserved in budget by steps of evaluating filters
	closed  bool              // an index is dropped when its last stream ends
}

// build is an index being made.
type build struct{ cancel context.CancelFunc }

// pending is memory reserved for an index being made.
type pending struct {
	bytes int64
	large bool
}

// index is the index of one filter.
type index struct {
	pick    *pick.Index
	streams int       // in use by
	touched time.Time // when it was last requested or used
}

// New makes a set of indexes that together take at most limit bytes, within the budget. Indexes are made, by pool, until ctx ends.
func New(ctx context.Context, budget *offheap.Budget, limit int64, pool *work.Pool, metrics *ops.Metrics) *Set {
	return &Set{
		budget: budget, limit: limit, metrics: metrics, pool: pool, ctx: ctx,
		held: map[string]*index{}, builds: map[string]*build{}, making: map[*pending]bool{}, made: make(chan struct{}),
	}
}

// find returns an index, or nil, and marks it as used now.
func (x *Set) find(id string) *pick.Index {
	x.mu.Lock()
	defer x.mu.Unlock()
	i := x.held[id]
	if i == nil {
		return nil
	}
	i.touched = time.Now()
	return i.pick
}

// Lend returns an index for use by one stream, and a function that ends the use.
func (x *Set) Lend(id string) (*pick.Index, func(), error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	i := x.held[id]
	if i == nil {
		return nil, nil, status.Error(codes.FailedPrecondition, "ticket: this node has no index of the filter any more; ask the head again")
	}
	i.streams++
	return i.pick, func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		i.streams--
		i.touched = time.Now()
		if x.closed && i.streams == 0 {
			x.dropLocked(id)
		}
	}, nil
}

// begin registers the making of an index until end is called; cancel ends it.
func (x *Set) begin(id string, cancel context.CancelFunc) (end func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	b := &build{cancel}
	x.builds[id] = b
	return func() {
		cancel()
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.builds[id] == b {
			delete(x.builds, id)
		}
	}
}

// Cancel ends the making of an index.
func (x *Set) Cancel(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if b := x.builds[id]; b != nil {
		b.cancel()
	}
}

// keep adds an index, and releases the reserved memory that it does not need. If there is an index already, it returns that.
func (x *Set) keep(id string, made *pick.Index, reserved *pending) *pick.Index {
	x.mu.Lock()
	defer x.mu.Unlock()
	if i := x.held[id]; i != nil {
		x.settleLocked(reserved, 0)
		return i.pick
	}
	x.held[id] = &index{pick: made, touched: time.Now()}
	x.settleLocked(reserved, made.Bytes())
	x.metrics.FilterIndexes.Add(1)
	return made
}

// abandon releases the memory of an index that was not made.
func (x *Set) abandon(reserved *pending) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.settleLocked(reserved, 0)
}

// settleLocked records that an index is not being made any more, and releases all but keep bytes of its memory.
func (x *Set) settleLocked(reserved *pending, keep int64) {
	x.releaseLocked(reserved.bytes - keep)
	delete(x.making, reserved)
	close(x.made)
	x.made = make(chan struct{})
}

// reserve reserves n bytes for an index. It drops idle ones until there is room, and waits while others are being made. dropped are the ids
// of those that it dropped. Large indexes, which take long to make, leave half of the memory to others while they are being made.
func (x *Set) reserve(ctx context.Context, n int64, large bool) (reserved *pending, dropped []string, err error) {
	for {
		reserved, more, made, err := x.tryReserve(n, large)
		dropped = append(dropped, more...)
		if err == nil || made == nil {
			return reserved, dropped, err
		}
		select {
		case <-made:
		case <-ctx.Done():
			return nil, dropped, ctx.Err()
		}
	}
}

// tryReserve is reserve, but does not wait: made is closed when it may succeed, and nil if it never will.
func (x *Set) tryReserve(n int64, large bool) (reserved *pending, dropped []string, made <-chan struct{}, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if others := x.largeLocked(); large && others > 0 && n > x.limit/2-others {
		return nil, nil, x.made, errOthers
	}
	for {
		if n <= x.limit-x.used {
			if err = x.budget.Reserve(n); err == nil {
				reserved = &pending{n, large}
				x.used += n
				x.making[reserved] = true
				x.metrics.FilterBytes.Add(float64(n))
				return reserved, dropped, nil, nil
			}
		} else {
			err = fmt.Errorf("needed %s, filters use %s of %s: raise --filter-memory, or end jobs with other filters", words.ExactBytes(n), words.ExactBytes(x.used), words.ExactBytes(x.limit))
		}
		idle := x.idleLocked()
		switch {
		case idle != "":
			x.dropLocked(idle)
			dropped = append(dropped, idle)
		case len(x.making) > 0:
			return nil, dropped, x.made, &indexRoomError{err}
		default:
			return nil, dropped, nil, &indexRoomError{err}
		}
	}
}

// largeLocked is the memory of large indexes being made.
func (x *Set) largeLocked() (bytes int64) {
	for p := range x.making {
		if p.large {
			bytes += p.bytes
		}
	}
	return bytes
}

// allow reserves memory for a step of evaluating a filter. All steps together get at most a quarter of what they leave free, unless this one
// runs alone.
func (x *Set) allow(n int64, alone bool) (*offheap.Allowance, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	clients := x.budget.Clients()
	if free := clients.Free(); !alone && x.working+n > (free+x.working)/4 {
		return nil, &offheap.ExhaustedError{Need: n, Used: x.budget.Used(), Limit: x.budget.Limit(), Most: free / 4}
	}
	allowance, err := clients.Allow(n)
	if err == nil {
		x.working += n
	}
	return allowance, err
}

// disallow releases the memory of a step.
func (x *Set) disallow(a *offheap.Allowance, n int64) {
	a.Close()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.working -= n
}

// errOthers says that a large index waits for others.
var errOthers = errors.New("other large filters are being evaluated")

// indexRoomError says that an index does not fit, with the bytes needed and available.
type indexRoomError struct{ cause error }

func (e *indexRoomError) Error() string { return "no memory for another filter: " + e.cause.Error() }
func (e *indexRoomError) Unwrap() error { return e.cause }

// idleLocked is the id of the index that no stream has used for the longest time, "" if all are in use.
func (x *Set) idleLocked() (id string) {
	for candidate, i := range x.held {
		if i.streams == 0 && (id == "" || i.touched.Before(x.held[id].touched)) {
			id = candidate
		}
	}
	return id
}

func (x *Set) dropLocked(id string) {
	x.releaseLocked(x.held[id].pick.Bytes())
	delete(x.held, id)
	x.metrics.FilterIndexes.Add(-1)
}

func (x *Set) releaseLocked(n int64) {
	x.budget.Release(n)
	x.used -= n
	x.metrics.FilterBytes.Add(float64(-n))
}

// Close waits for the end of making indexes, whose context must have ended, and drops all indexes; those that streams use when the streams end.
func (x *Set) Close() {
	x.running.Wait()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
	for id, i := range x.held {
		if i.streams == 0 {
			x.dropLocked(id)
		}
	}
}
