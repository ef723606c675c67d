// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"context"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/kubeflow/datacache/cacheserver/source"
)

// chunkFiles is the number of data files that a process takes at a time.
const chunkFiles = 256

// planner plans data files in chunks, which this process and others take.
type planner struct {
	table    *Table
	files    Files
	progress func(done, total int)
	others   func(ctx context.Context, v source.Version, work func(source.FilePlanner)) // nil: nobody

	mu     sync.Mutex
	next   int   // the first chunk that nobody has taken
	failed []int // chunks that another process has failed to plan
	away   int   // number of chunks that others have
	back   *sync.Cond
	splits [][]source.Split // by chunk
	done   int              // number of files
}

func newPlanner(t *Table, files Files, by *source.Planning) *planner {
	p := &planner{table: t, files: files, progress: func(int, int) {}, splits: make([][]source.Split, (files.N+chunkFiles-1)/chunkFiles)}
	p.back = sync.NewCond(&p.mu)
	if by != nil && by.Progress != nil {
		p.progress = by.Progress
	}
	if by != nil && files.Version != nil && len(p.splits) > 1 {
		p.others = by.Others
	}
	return p
}

// plan plans all files.
func (p *planner) plan(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	if p.others != nil {
		wait.Go(func() { p.others(ctx, *p.files.Version, func(other source.FilePlanner) { p.lend(ctx, other) }) })
	}
	defer wait.Wait()
	defer cancel()
	for more := true; more; more = p.wait() {
		if err := p.planHere(ctx); err != nil {
			return err
		}
	}
	return nil
}

// take returns a chunk that nobody has.
func (p *planner) take(away int) (chunk int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch n := len(p.failed); {
	case n > 0:
		chunk, p.failed = p.failed[n-1], p.failed[:n-1]
	case p.next < len(p.splits):
		chunk = p.next
		p.next++
	default:
		return 0, false
	}
	p.away += away
	return chunk, true
}

// wait waits until others have no chunks. It returns whether there are some left.
func (p *planner) wait() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.away > 0 && len(p.failed) == 0 {
		p.back.Wait()
	}
	return len(p.failed) > 0
}

// planned records that n files are planned.
func (p *planner) planned(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += n
	p.progress(p.done, p.files.N)
}

// planHere plans chunks until all are taken. The first footer is read alone, since its length says how to read the others.
func (p *planner) planHere(parent context.Context) error {
	room := semaphore.NewWeighted(footerMemory)
	group, ctx := errgroup.WithContext(parent)
	group.SetLimit(FooterReaders)
	for chunk, ok := p.take(0); ok && ctx.Err() == nil; chunk, ok = p.take(0) {
		perFile := make([][]source.Split, min(chunkFiles, p.files.N-chunk*chunkFiles))
		left := len(perFile) // protected by p.mu
		one := func(i int) (err error) {
			cost := p.table.footerCost()
			if err := room.Acquire(ctx, cost); err != nil {
				return context.Cause(ctx)
			}
			defer room.Release(cost)
			if perFile[i], err = p.table.splits(ctx, p.files.At(chunk*chunkFiles+i)); err != nil {
				return err
			}
			p.planned(1)
			p.mu.Lock()
			defer p.mu.Unlock()
			if left--; left == 0 {
				p.splits[chunk] = slices.Concat(perFile...)
			}
			return nil
		}
		for i := range perFile {
			if p.table.longest.Load() > 0 {
				group.Go(func() error { return one(i) })
			} else if err := one(i); err != nil {
				return err // no other has begun
			}
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return context.Cause(parent)
}

// lend lets another process plan chunks, until all are taken or it fails.
func (p *planner) lend(ctx context.Context, other source.FilePlanner) {
	for chunk, ok := p.take(1); ok; chunk, ok = p.take(1) {
		files := make([]source.Split, min(chunkFiles, p.files.N-chunk*chunkFiles))
		for i := range files {
			f := p.files.At(chunk*chunkFiles + i)
			files[i] = f.Split
			files[i].Rows = f.Rows
		}
		splits, err := other.PlanFiles(ctx, files)
		p.mu.Lock()
		p.away--
		if err != nil {
			p.failed = append(p.failed, chunk)
		} else {
			p.splits[chunk] = splits
		}
		p.back.Broadcast()
		p.mu.Unlock()
		if err != nil {
			return // this process will see why, if that is not the other's own trouble
		}
		p.planned(len(files))
	}
}
