// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package index

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/bitutil"

	"github.com/kubeflow/datacache/cacheserver/filter"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/pick"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/work"
)

const (
	// A step evaluates a filter over at most mostRows rows, over fewer if it makes more than stepComparisons, and over at least leastRows. All
	// are multiples of 64, so that steps write different words.
	mostStep, leastStep = 1 << 17, 1 << 10
	stepComparisons     = 1 << 23
	// largeComparisons is the number of comparisons of a filter that takes about a second of a core.
	largeComparisons = 1 << 30
	// stepBytes is the memory for the messages that a step reads, besides that of the filter's evaluator. Longer rows take more.
	stepBytes = 512 << 10
	// compileBytes is the memory that compiling a filter takes for each byte of its text, and compiledBytes what the result takes. compileCost is
	// the time, in comparisons.
	compileBytes, compiledBytes, compileCost = 320, 48, 256
)

// Rows are the rows that filters are evaluated over.
type Rows struct {
	*rows.Rows // nil while they are not loaded
	Layout     *rows.Layout
}

// Make starts to make the index that the head asked for, and then passes the answer on. It ends with the set's context, with ctx, which is
// that of the session with the head, or by Cancel.
func (x *Set) Make(ctx context.Context, of Rows, spec peer.Index, answer func(peer.Indexed)) {
	making, cancel := context.WithCancel(x.ctx)
	end := x.begin(spec.ID, cancel)
	stop := context.AfterFunc(ctx, cancel)
	x.running.Go(func() {
		made := x.answer(making, of, spec)
		stop()
		end()
		answer(made)
	})
}

func (x *Set) answer(ctx context.Context, of Rows, spec peer.Index) peer.Indexed {
	answer := peer.Indexed{Plan: spec.Plan, ID: spec.ID}
	made, dropped, err := x.index(ctx, of, spec)
	answer.Dropped = dropped
	switch {
	case ctx.Err() != nil:
		answer.ID = "" // nobody waits for it; the head may have asked again
	case err != nil:
		var full *indexRoomError
		answer.Refusal, answer.NoRoom = err.Error(), errors.As(err, &full)
	default:
		answer.Rows, answer.Hash = int64(made.Len()), strconv.FormatUint(made.Hash(), 16)
	}
	return answer
}

// index returns the index of a filter, and the ids of those that were dropped for it.
func (x *Set) index(ctx context.Context, of Rows, spec peer.Index) (made *pick.Index, dropped []string, err error) {
	if of.Rows == nil || !of.Retain() {
		return nil, nil, errors.New("the rows are not loaded")
	}
	defer of.Release()
	if made := x.find(spec.ID); made != nil {
		return made, nil, nil
	}
	begin := time.Now()
	compiled := int64(compiledBytes * len(spec.Filter))
	if err := x.budget.Reserve(compiled); err != nil {
		return nil, nil, &indexRoomError{err}
	}
	defer x.budget.Release(compiled)
	m, err := x.compile(ctx, of, spec)
	if err != nil {
		return nil, nil, err
	}
	terms, _ := m.Cost()
	reserved, dropped, err := x.reserve(ctx, pick.MaxBytes(uint64(of.Len())), int64(terms)*of.Len() > largeComparisons)
	if err != nil {
		return nil, dropped, err
	}
	words, err := x.evaluate(ctx, of.Rows, m, spec.Job)
	if err == nil {
		made, err = pick.New(words, uint64(of.Len()))
	}
	if err != nil {
		x.abandon(reserved)
		return nil, dropped, err
	}
	x.metrics.FilterSeconds.Add(time.Since(begin).Seconds())
	return x.keep(spec.ID, made, reserved), dropped, nil
}

// compiledFilter is a filter, and the columns that it compares.
type compiledFilter struct {
	*filter.Matcher
	columns *rows.Projection
}

// compile compiles a filter. It runs in the pool and reserves memory for it, as evaluate does.
func (x *Set) compile(ctx context.Context, of Rows, spec peer.Index) (f compiledFilter, err error) {
	working := int64(compileBytes * len(spec.Filter))
	err = x.pool.Run(ctx, work.Task{
		Owner: spec.Job, Steps: 1, Cost: float64(compileCost * len(spec.Filter)),
		Begin: func(bool) (func(int) error, error) {
			if err := x.budget.Reserve(working); err != nil {
				return nil, &indexRoomError{err}
			}
			return func(int) (err error) {
				defer x.budget.Release(working)
				if f.Matcher, err = filter.Match(of.Layout.Schema(), spec.Filter); err == nil {
					f.columns, err = of.Layout.Project(f.Columns())
				}
				return err
			}, nil
		},
	})
	return f, err
}

// evaluate evaluates a filter over all rows and returns a bit for each, for pick.New. It takes turns with other filters.
func (x *Set) evaluate(ctx context.Context, all *rows.Rows, f compiledFilter, owner string) ([]uint64, error) {
	words := make([]uint64, pick.Words(uint64(all.Len())))
	bits := arrow.Uint64Traits.CastToBytes(words)
	terms, memory := f.Cost()
	step := stepRows(terms)
	err := x.pool.Run(ctx, work.Task{
		Owner: owner, Steps: int((all.Len() + step - 1) / step), Cost: float64(step) * float64(max(terms, 1)),
		Begin: func(alone bool) (func(i int) error, error) {
			allowance, err := x.allow(stepBytes+memory, alone)
			if err == nil {
				err = allowance.Reserve(memory)
			}
			if err != nil {
				return nil, &indexRoomError{err}
			}
			return func(i int) error {
				defer x.disallow(allowance, stepBytes+memory)
				defer allowance.Release(memory)
				lo := int64(i) * step
				return f.match(all, allowance, lo, min(lo+step, all.Len()), bits)
			}, nil
		},
	})
	return words, err
}

// stepRows is the number of rows of a step of a filter with a number of terms.
func stepRows(terms int) int64 {
	return min(max(stepComparisons/int64(max(terms, 1))&^(leastStep-1), leastStep), mostStep)
}

// match sets the bits of rows [lo, hi).
func (f compiledFilter) match(all *rows.Rows, allowance *offheap.Allowance, lo, hi int64, bits []byte) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("filter: evaluating rows %d to %d failed: %v\n%s", lo, hi, r, debug.Stack())
		}
	}()
	evaluate := f.Evaluator()
	for batch, err := range all.Records(f.columns.Within(allowance), lo, hi) {
		if err != nil {
			return err
		}
		n := int(batch.NumRows())
		keep, err := evaluate(batch.Columns(), n)
		if err != nil {
			return err
		}
		bitutil.CopyBitmap(keep, 0, n, bits, int(lo))
		lo += int64(n)
	}
	return nil
}
