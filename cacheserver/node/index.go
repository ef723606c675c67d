// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/pick"
	"github.com/kubeflow/datacache/cacheserver/rows"
)

// indexes are the filters' indexes of an assignment's rows. Those that no stream uses are dropped, least recently used first, when
// another one needs the memory. It is safe for concurrent use.
type indexes struct {
	budget  *rows.Budget
	limit   int64 // bytes of all indexes
	metrics *ops.Metrics

	building sync.Mutex // held while a filter is evaluated: that uses all cores

	mu     sync.Mutex
	held   map[string]*index
	used   int64 // bytes reserved in budget
	closed bool  // an index is dropped when its last stream ends
}

// index is the index of one filter.
type index struct {
	pick    *pick.Index
	streams int       // in use by
	touched time.Time // when it was last requested or used
}

func newIndexes(cfg *Config) *indexes {
	return &indexes{budget: cfg.Budget, limit: cfg.FilterMemory, metrics: cfg.Metrics, held: map[string]*index{}}
}

// find returns an index, or nil, and marks it as used now.
func (x *indexes) find(id string) *pick.Index {
	x.mu.Lock()
	defer x.mu.Unlock()
	i := x.held[id]
	if i == nil {
		return nil
	}
	i.touched = time.Now()
	return i.pick
}

// lend returns an index for use by one stream, and a function that ends the use.
func (x *indexes) lend(id string) (*pick.Index, func(), error) {
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

// keep adds an index, for which reserved bytes were reserved, and releases those that it does not need.
func (x *indexes) keep(id string, made *pick.Index, reserved int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.held[id] = &index{pick: made, touched: time.Now()}
	x.releaseLocked(reserved - made.Bytes())
	x.metrics.FilterIndexes.Add(1)
}

// reserve reserves n bytes for an index, and drops idle ones until there is room. dropped are their ids.
func (x *indexes) reserve(n int64) (dropped []string, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for {
		if n <= x.limit-x.used {
			if err = x.budget.Reserve(n); err == nil {
				x.used += n
				x.metrics.FilterBytes.Add(float64(n))
				return dropped, nil
			}
		} else {
			err = fmt.Errorf("needed %s, filters use %s of %s: raise --filter-memory, or end jobs with other filters", inBytes(n), inBytes(x.used), inBytes(x.limit))
		}
		idle := x.idleLocked()
		if idle == "" {
			return dropped, &indexRoomError{err}
		}
		x.dropLocked(idle)
		dropped = append(dropped, idle)
	}
}

// indexRoomError says that an index does not fit, with the bytes needed and available.
type indexRoomError struct{ cause error }

func (e *indexRoomError) Error() string { return "no memory for another filter: " + e.cause.Error() }
func (e *indexRoomError) Unwrap() error { return e.cause }

// idleLocked is the id of the index that no stream has used for the longest time, "" if all are in use.
func (x *indexes) idleLocked() (id string) {
	for candidate, i := range x.held {
		if i.streams == 0 && (id == "" || i.touched.Before(x.held[id].touched)) {
			id = candidate
		}
	}
	return id
}

func (x *indexes) dropLocked(id string) {
	x.releaseLocked(x.held[id].pick.Bytes())
	delete(x.held, id)
	x.metrics.FilterIndexes.Add(-1)
}

func (x *indexes) releaseLocked(n int64) {
	x.budget.Release(n)
	x.used -= n
	x.metrics.FilterBytes.Add(float64(-n))
}

func (x *indexes) release(n int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.releaseLocked(n)
}

// close drops all indexes; those that streams use when the streams end.
func (x *indexes) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
	for id, i := range x.held {
		if i.streams == 0 {
			x.dropLocked(id)
		}
	}
}
