// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"time"

	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/rows"
)

// lookahead is how many positions ahead a stream that waits says which rows it needs, and apart how many of them count as one position.
const lookahead, apart = 1024, 8

// announced is the walk of an early stream, which says what rows come in its next positions.
type announced struct {
	walk
	early  Early
	ahead  walk // of the same rows, at least lookahead positions further on, or at the end
	passed uint64
	said   uint64 // positions that ahead has passed
}

// announce returns the stream's walk over rows that are loaded; with Early, one that says what rows it needs.
func (l Lent) announce() (walk, error) {
	own, err := l.walk()
	if err != nil || l.Early == nil {
		return own, err
	}
	ahead, err := l.walk()
	return &announced{walk: own, early: l.Early, ahead: ahead}, err
}

// Next implements walk.
func (a *announced) Next(runs []rows.Run, positions uint64) (n int, passed uint64) {
	n, passed = a.walk.Next(runs, positions)
	a.passed += passed
	var some [apart]rows.Run
	for a.said < a.passed+lookahead {
		found, said := a.ahead.Next(some[:], apart)
		if said == 0 {
			break
		}
		for _, run := range some[:found] {
			a.early.Want(run, a.said)
		}
		a.said += said
	}
	return n, passed
}

// cutsNow says where to end batches: those of an early stream at each step, so that a client gets a step as soon as its rows are loaded.
func (l Lent) cutsNow(length, longest int64) cut {
	if l.Early == nil {
		return l.cuts(l.meanBytes(), length, longest)
	}
	every := cut{positions: endless, rows: int(min(max(length/max(l.Mean, 1), 1), mostRows))}
	if lo, hi := epoch.Shard(l.Ticket.Share.Rank, l.Ticket.Share.World, l.Ticket.Epoch.GlobalBatch); lo < hi {
		every.positions = hi - lo
	}
	return every
}

// await returns rows with those of runs, which the caller releases by calling done, and the runs in their numbers. While the node loads, it waits
// until the first count rows are there, and returns the runs of these.
func (s *sender) await(runs []rows.Run, count int) (in *rows.Rows, found []rows.Run, done func(), err error) {
	if s.Early == nil {
		return s.Rows, runs, func() {}, nil
	}
	s.turn.Release() // loading may take long
	begin := time.Now()
	in, found, all, err := s.Early.Rows(s.stream.Context(), firstRows(runs, count))
	if err != nil {
		return nil, nil, nil, earlyRefusal(s.stream.Context(), err)
	}
	s.loading += time.Since(begin)
	s.begin = s.begin.Add(time.Since(begin)) // the time that a message took leaves out the wait
	if !all {
		return in, found, in.Release, nil
	}
	s.Rows, s.Early, s.Sweep = in, nil, s.Swept() // released at the end of the stream
	if s.Sweep == nil {
		return in, runs, func() {}, nil
	}
	return s.collected(firstRows(runs, count))
}

// earlyRefusal is the status of an error of Early.
func earlyRefusal(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return refusal(err, "wait for rows that are loaded")
}

// firstRows returns the runs of the first count rows.
func firstRows(runs []rows.Run, count int) []rows.Run {
	first, left := runs[:0:0], uint64(count)
	for _, run := range runs {
		if left == 0 {
			break
		}
		run.Rows = min(run.Rows, left)
		first, left = append(first, run), left-run.Rows
	}
	return first
}

// withoutRows returns runs without their first count rows.
func withoutRows(runs []rows.Run, count int) []rows.Run {
	left := uint64(count)
	for left > 0 && runs[0].Rows <= left {
		left, runs = left-runs[0].Rows, runs[1:]
	}
	if left > 0 {
		runs[0].First, runs[0].Rows = runs[0].First+left, runs[0].Rows-left
	}
	return runs
}
