// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/pack"
	"github.com/kubeflow/datacache/cacheserver/protocol"
)

// plannedWindows returns windows over many rows of 100 tokens, and counts the reads of their lengths.
func plannedWindows(budget *offheap.Budget, reads *atomic.Int64, before func(ctx context.Context) error) (*Windows, Rows, protocol.Request) {
	lengths := func(ctx context.Context, from, to uint64) (s Sequence, err error) {
		reads.Add(1)
		for row := from; row < to; row++ {
			s.Rows, s.Lengths = append(s.Rows, int64(row)), append(s.Lengths, 100)
		}
		return s, before(ctx)
	}
	law := pack.Law{Tokens: 1000, Packs: 100, Window: 1, Multiple: 1, Quadratic: 1, Long: pack.Refuse}
	return New(budget.Clients()), Rows{Len: 1 << 40, Lengths: lengths}, protocol.Request{Epoch: epoch.Epoch{GlobalBatch: 1}, Packs: &protocol.Packs{Law: law}}
}

func TestManyRanksPlanAWindowOnce(t *testing.T) {
	var reads atomic.Int64
	budget := offheap.NewBudget(1 << 30)
	p, of, r := plannedWindows(budget, &reads, func(context.Context) error { return nil })
	var ranks sync.WaitGroup
	for rank := range uint64(32) {
		ranks.Go(func() {
			w, err := p.Get(t.Context(), of, r, 1000)
			if err != nil {
				t.Error(err)
				return
			}
			if own := w.Share(0, epoch.Share{Rank: rank, World: 32}); len(own) != 4 || w.Rows != 1000 {
				t.Errorf("rank %d has packs %v of %d rows", rank, own, w.Rows)
			}
		})
	}
	ranks.Wait()
	if got := reads.Load(); got != 1 {
		t.Errorf("the lengths were read %d times for one window", got)
	}
	for i := range uint64(4000) {
		if _, err := p.Get(t.Context(), of, r, i*1000); err != nil {
			t.Fatal(err)
		}
	}
	if p.bytes > windowsMemory || p.bytes < windowsMemory*9/10 || p.used.Len() != len(p.held) {
		t.Errorf("%d windows hold %d bytes, may hold %d", len(p.held), p.bytes, windowsMemory)
	}
	if used := budget.Used(); used != p.bytes {
		t.Errorf("%d bytes are reserved for %d", used, p.bytes)
	}
}

func TestAWindowOfACancelledRankIsPlannedForTheOthers(t *testing.T) {
	var reads atomic.Int64
	begun := make(chan struct{})
	p, of, r := plannedWindows(offheap.NewBudget(1<<30), &reads, func(ctx context.Context) error {
		if reads.Load() > 1 {
			return nil
		}
		close(begun)
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	var first sync.WaitGroup
	first.Go(func() {
		if _, err := p.Get(ctx, of, r, 0); status.Code(err) != codes.Canceled {
			t.Errorf("%v: want CANCELED", err)
		}
	})
	<-begun
	first.Go(func() {
		if w, err := p.Get(t.Context(), of, r, 0); err != nil || w.Rows != 1000 {
			t.Errorf("the second rank: %v", err)
		}
	})
	cancel()
	first.Wait()
}

func TestPlansAreWithinMemory(t *testing.T) {
	var reads atomic.Int64
	budget := offheap.NewBudget(2 << 20)
	p, of, r := plannedWindows(budget, &reads, func(context.Context) error { return nil })
	r.Packs.Packs = 1 << 14
	if _, err := p.Get(t.Context(), of, r, 0); status.Code(err) != codes.ResourceExhausted || budget.Used() != 0 {
		t.Errorf("%v, %d bytes reserved: want RESOURCE_EXHAUSTED", err, budget.Used())
	}
	r.Packs.Packs = 100
	for i := range uint64(200) {
		if _, err := p.Get(t.Context(), of, r, i*1000); err != nil {
			t.Fatalf("window %d: %v: want older windows dropped", i, err)
		}
	}
	p, of, r = plannedWindows(offheap.NewBudget(1<<30), &reads, func(context.Context) error { return nil })
	r.Packs.Packs = 1 << 16
	r.Packs.Tokens = 10_000
	if _, err := p.Get(t.Context(), of, r, 0); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("%v: want FAILED_PRECONDITION for 6 million rows", err)
	}
}
