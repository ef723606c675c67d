// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/cacheserver/pick"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/source"
)

const (
	// matchRows is how many rows a core evaluates a filter over at a time; a multiple of 64, so that cores write different words.
	matchRows = 1 << 17
	// matchBytes is the memory that a core needs for that: a batch of the filter's columns, and truth values.
	matchBytes = 4 << 20
)

// answerIndex makes the index that the head asked for, and answers.
func (a *assignment) answerIndex(from source.Source, spec peer.Index) peer.Indexed {
	answer := peer.Indexed{Plan: spec.Plan, ID: spec.ID}
	made, dropped, err := a.index(from, spec)
	answer.Dropped = dropped
	if err != nil {
		var full *indexRoomError
		answer.Refusal, answer.NoRoom = err.Error(), errors.As(err, &full)
		return answer
	}
	answer.Rows, answer.Hash = int64(made.Len()), strconv.FormatUint(made.Hash(), 16)
	return answer
}

// index returns the index of a filter, and the ids of those that were dropped for it.
func (a *assignment) index(from source.Source, spec peer.Index) (made *pick.Index, dropped []string, err error) {
	loaded := a.loaded()
	if loaded == nil || !loaded.Retain() {
		return nil, nil, errors.New("the rows are not loaded")
	}
	defer loaded.Release()
	x := a.indexes
	x.building.Lock()
	defer x.building.Unlock()
	if made := x.find(spec.ID); made != nil {
		return made, nil, nil
	}
	begin := time.Now()
	matcher, err := from.Match(a.layout.Schema(), spec.Filter)
	if err != nil {
		return nil, nil, err
	}
	projection, err := a.layout.Project(matcher.Columns())
	if err != nil {
		return nil, nil, err
	}
	workers := int(min(int64(runtime.GOMAXPROCS(0)), (loaded.Len()+matchRows-1)/matchRows))
	most, working := pick.MaxBytes(uint64(loaded.Len())), int64(workers)*matchBytes
	if dropped, err = x.reserve(most); err != nil {
		return nil, dropped, err
	}
	if err = x.budget.Reserve(working); err != nil {
		x.release(most)
		return nil, dropped, &indexRoomError{err}
	}
	words, err := matchAll(a.building, loaded, projection, matcher, workers)
	x.budget.Release(working)
	if err == nil {
		made, err = pick.New(words, uint64(loaded.Len()))
	}
	if err != nil {
		x.release(most)
		return nil, dropped, err
	}
	x.keep(spec.ID, made, most)
	x.metrics.FilterSeconds.Add(time.Since(begin).Seconds())
	return made, dropped, nil
}

// matchAll evaluates a filter over all rows and returns a bit for each, for pick.New.
func matchAll(ctx context.Context, all *rows.Rows, p *rows.Projection, m source.Matcher, workers int) ([]uint64, error) {
	words := make([]uint64, pick.Words(uint64(all.Len())))
	bits := arrow.Uint64Traits.CastToBytes(words)
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range workers {
		group.Go(func() error {
			for ctx.Err() == nil {
				lo := (next.Add(1) - 1) * matchRows
				if lo >= all.Len() {
					return nil
				}
				if err := match(all, p, m, lo, min(lo+matchRows, all.Len()), bits); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
	}
	return words, group.Wait()
}

// match sets the bits of rows [lo, hi).
func match(all *rows.Rows, p *rows.Projection, m source.Matcher, lo, hi int64, bits []byte) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("filter: evaluating rows %d to %d failed: %v\n%s", lo, hi, r, debug.Stack())
		}
	}()
	for batch, err := range all.Records(p, lo, hi) {
		if err != nil {
			return err
		}
		n := int(batch.NumRows())
		keep, err := m.Match(batch.Columns(), n)
		if err != nil {
			return err
		}
		bitutil.CopyBitmap(keep, 0, n, bits, int(lo))
		lo += int64(n)
	}
	return nil
}
