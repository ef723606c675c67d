// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"slices"
	"sort"
	"sync"

	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/source"
)

// Early has the rows of an assignment that are loaded so far, for streams that don't wait until all are. Make it with NewEarly; it is safe for
// concurrent use.
type Early struct {
	opened chan struct{} // closed when layout is set, and at the end of loading
	demand *demand
	starts []int64 // first row of each split, then the number of rows; nil if some splits' rows are not known before they are decoded
	bytes  int64   // estimate for all rows

	budget  *offheap.Budget
	copying chan struct{} // has room for one: the stream that copies rows of chunks that may be in files only

	mu      sync.Mutex
	layout  *rows.Layout
	sealed  []*rows.Sealed        // by split; nil: it is not loaded
	arrived map[int]chan struct{} // closed when the split is loaded; only of splits that somebody waits for
	ended   chan struct{}         // closed when loading has ended
	all     *rows.Rows            // all rows, after a load that succeeded
	err     error                 // why loading has ended otherwise
	part    *rows.Rows            // rows of the loaded splits as of the last call that needed one that was not among them
	at      []int64               // by split, where part has its rows; -1: it has not
}

// NewEarly returns an Early for the given number of splits, none of which is known yet.
func NewEarly(splits int) *Early {
	e := &Early{opened: make(chan struct{}), ended: make(chan struct{}), demand: newDemand(splits), arrived: map[int]chan struct{}{}, copying: make(chan struct{}, 1)}
	e.sealed, e.at = make([]*rows.Sealed, splits), make([]int64, splits)
	for i := range e.at {
		e.at[i] = -1
	}
	return e
}

// open says which rows are loaded, and in which budget. After End it has no effect.
func (e *Early) open(layout *rows.Layout, splits []source.Split, budget *offheap.Budget) {
	e.budget = budget
	starts := make([]int64, 1, len(splits)+1)
	for i, s := range splits {
		e.bytes += s.Bytes
		starts = append(starts, starts[i]+s.Kept())
		if s.Kept() < 0 {
			starts = nil
			break
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil || e.all != nil {
		return
	}
	e.layout, e.starts = layout, starts
	close(e.opened)
}

// add records a loaded split.
func (e *Early) add(split int, sealed rows.Sealed) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sealed == nil { // nobody waits any more
		return
	}
	e.sealed[split] = &sealed
	if arrived := e.arrived[split]; arrived != nil {
		close(arrived)
		delete(e.arrived, split)
	}
}

// End records the end of loading: all rows, or why there are not all. Later calls have no effect.
func (e *Early) End(all *rows.Rows, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.all != nil || e.err != nil {
		return
	}
	e.all, e.err, e.sealed = all, err, nil
	if e.part != nil {
		e.part.Release()
		e.part = nil
	}
	if !e.IsOpen() {
		close(e.opened)
	}
	close(e.ended)
}

// Opened is closed when it is known what Layout and Expected return.
func (e *Early) Opened() <-chan struct{} { return e.opened }

// IsOpen reports whether Opened is closed.
func (e *Early) IsOpen() bool {
	select {
	case <-e.opened:
		return true
	default:
		return false
	}
}

// Layout returns the layout of the rows; nil if loading has ended before it was known.
func (e *Early) Layout() *rows.Layout {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.layout
}

// Expected returns the number of all rows and an estimate of their mean size; false if the number is not known before all are loaded. It must
// not be called before Opened is closed.
func (e *Early) Expected() (count, mean int64, ok bool) {
	if e.starts == nil {
		return 0, 0, false
	}
	count = e.starts[len(e.starts)-1]
	return count, e.bytes / max(count, 1), true
}

// Want says that a stream needs rows at a position of its sequence. Splits that are needed first are loaded first.
func (e *Early) Want(run rows.Run, position uint64) {
	first, last := e.splitOf(int64(run.First)), e.splitOf(int64(run.First+run.Rows-1))
	for split := first; split <= last; split++ {
		e.demand.want(split, position)
	}
}

// mostSeeded is how many positions of the first epoch decide the order of loading. Positions are processed seedStep at a time, and the splits of a
// step are needed equally soon.
const mostSeeded, seedStep = 1 << 20, 16

// seed has splits loaded in the order in which an epoch needs them; streams that wait go first.
func (e *Early) seed(c *epoch.Cursor) {
	var runs [seedStep]rows.Run
	for position := uint64(0); position < mostSeeded && e.starts != nil; {
		n, passed := c.Next(runs[:], seedStep)
		if passed == 0 {
			return
		}
		for _, run := range runs[:n] {
			e.Want(run, position)
		}
		position += passed
	}
}

// splitOf is the split that has a row.
func (e *Early) splitOf(row int64) int {
	return sort.Search(len(e.starts)-1, func(i int) bool { return e.starts[i+1] > row })
}

// Rows waits until the rows of runs are loaded, and returns rows in which they are, with the runs in the numbers of those rows. The caller releases
// the rows. If all is true, the load has ended and the rows are those of the whole node, some of which may be in files only. Otherwise all are in
// memory.
func (e *Early) Rows(ctx context.Context, runs []rows.Run) (in *rows.Rows, found []rows.Run, all bool, err error) {
	for _, run := range runs {
		for split, last := e.splitOf(int64(run.First)), e.splitOf(int64(run.First+run.Rows-1)); split <= last; split++ {
			if err := e.await(ctx, split); err != nil {
				return nil, nil, false, err
			}
		}
	}
	in, found, all, err = e.find(runs)
	if err != nil || all || !in.IsStored() {
		return in, found, all, err
	}
	defer in.Release()
	select {
	case e.copying <- struct{}{}:
		in, found, err = e.copy(ctx, in, found)
		return in, found, false, err
	case <-e.ended:
		return e.find(runs)
	case <-ctx.Done():
		return nil, nil, false, ctx.Err()
	}
}

// find is Rows without waiting: the runs must be loaded. Some of the rows may be in files only, whatever all is.
func (e *Early) find(runs []rows.Run) (in *rows.Rows, found []rows.Run, all bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return nil, nil, false, e.err
	}
	if e.all != nil {
		if !e.all.Retain() {
			return nil, nil, false, offheap.ErrReleased
		}
		return e.all, runs, true, nil
	}
	if found = e.translateLocked(runs); found == nil {
		if err := e.collectLocked(); err != nil {
			return nil, nil, false, err
		}
		found = e.translateLocked(runs)
	}
	e.part.Retain()
	return e.part, found, false, nil
}

// await waits until a split is loaded, or loading has ended.
func (e *Early) await(ctx context.Context, split int) error {
	e.mu.Lock()
	if e.sealed == nil || e.sealed[split] != nil {
		e.mu.Unlock()
		return nil
	}
	arrived := e.arrived[split]
	if arrived == nil {
		arrived = make(chan struct{})
		e.arrived[split] = arrived
	}
	e.mu.Unlock()
	select {
	case <-arrived:
	case <-e.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// translateLocked returns runs as part numbers their rows; nil if part has not all of them.
func (e *Early) translateLocked(runs []rows.Run) []rows.Run {
	found := make([]rows.Run, 0, len(runs))
	for _, run := range runs {
		for row, end := int64(run.First), int64(run.First+run.Rows); row < end; {
			split := e.splitOf(row)
			if e.at[split] < 0 {
				return nil
			}
			n := min(end, e.starts[split+1]) - row
			found = append(found, rows.Run{First: uint64(e.at[split] + row - e.starts[split]), Rows: uint64(n)})
			row += n
		}
	}
	return found
}

// collectLocked makes part of all splits that are loaded.
func (e *Early) collectLocked() error {
	var chunks []*rows.Chunk
	at, next := slices.Clone(e.at), int64(0)
	for i, s := range e.sealed {
		if s != nil {
			chunks = append(chunks, s.Chunks...)
			at[i], next = next, next+s.Rows
		}
	}
	part, err := rows.NewRows(e.layout, chunks)
	if err != nil {
		return err
	}
	if e.part != nil {
		e.part.Release()
	}
	e.part, e.at = part, at
	return nil
}
