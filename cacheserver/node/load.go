// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/internal/tracing"
)

// load is the process of loading one assignment. It is dropped when loading ends, together with the splits, footers and deletes. Only
// run and the goroutines that run waits for may use it.
type load struct {
	cfg      *Config
	source   source.Source
	spec     peer.Assign
	arena    *rows.Arena
	progress *progress

	dataset source.Dataset
	splits  []source.Split
	layout  *rows.Layout
	sealed  []rows.Sealed // by split; set by the goroutine that decodes it
}

func newLoad(cfg *Config, from source.Source, a *assignment) *load {
	sealed := make([]rows.Sealed, len(a.spec.Splits))
	return &load{cfg: cfg, source: from, spec: a.spec, arena: a.arena, progress: &a.progress, sealed: sealed}
}

// run opens the assigned version and loads all splits into memory.
func (l *load) run(ctx context.Context) (*rows.Layout, *rows.Rows, error) {
	for _, text := range l.spec.Splits {
		split, err := l.source.Split(text)
		if err != nil {
			return nil, nil, err
		}
		l.splits = append(l.splits, split)
	}
	version := source.Version{Pin: l.spec.Pin, Selection: l.spec.Selection}
	openCtx, span := tracing.Child(ctx, "open")
	err := l.retry(openCtx, noSplit, func() (err error) {
		l.dataset, err = l.source.Open(openCtx, version, l.cfg.Decoding.buffers)
		return err
	})
	tracing.End(span, err)
	if err != nil {
		return nil, nil, err
	}
	if l.layout, err = rows.NewLayout(l.dataset.Schema()); err != nil {
		return nil, nil, err
	}
	if err := l.loadAll(ctx); err != nil {
		return nil, nil, err
	}
	var chunks []*rows.Chunk
	for _, s := range l.sealed {
		chunks = append(chunks, s.Chunks...)
	}
	loaded, err := rows.NewRows(l.layout, chunks)
	return l.layout, loaded, err
}

// job is a split whose column chunks were prefetched.
type job struct {
	index      int // within the assignment
	fetched    source.Fetched
	begin, end time.Time // when they were
}

// loadAll loads every split. Each worker prefetches one split while it decodes another. The first error ends the load; nothing is
// ever skipped.
func (l *load) loadAll(ctx context.Context) error {
	if len(l.splits) == 0 {
		return nil
	}
	workers, release, err := l.reserveMemory()
	if err != nil {
		return err
	}
	defer release()
	defer l.cfg.Decoding.load()()
	group, ctx := errgroup.WithContext(ctx)
	jobs := make(chan job)
	var next atomic.Int64
	var fetchers errgroup.Group
	for range workers {
		fetchers.Go(func() error { return l.fetch(ctx, &next, jobs) })
		group.Go(func() error { return l.decodeAll(ctx, jobs) })
	}
	group.Go(func() error {
		defer close(jobs)
		return fetchers.Wait()
	})
	return group.Wait()
}

const (
	// pageRows is the approximate number of rows in a page of large values: writers check a page's size every 1024 values.
	pageRows = 2048
	// pageBytes is the approximate memory for decoding a column of small values: a page, usually 1 MiB, and its dictionary, most of
	// which is dropped before the page is read.
	pageBytes = 3 << 19
	// batchBytes is the memory for the batches in progress.
	batchBytes = 12 << 20
)

// decoding estimates the memory for decoding a split, besides the rows and the compressed bytes: an uncompressed page of each column,
// and batches.
func (l *load) decoding(s source.SplitInfo) int64 {
	columns := int64(l.layout.Schema().NumFields())
	pages := min(s.Bytes, columns*pageBytes+pageRows*(s.Bytes/max(s.Rows, 1)))
	return pages + min(s.Bytes, batchBytes)
}

// reserveMemory reserves memory for the splits in progress, and reduces the number of workers until it fits: for each worker the
// compressed bytes of the split being decoded and of the next one, and the memory for decoding (see DecodeLimiter).
func (l *load) reserveMemory() (workers int, release func(), err error) {
	var compressed, decoding int64
	for _, split := range l.splits {
		s := split.Info()
		compressed, decoding = max(compressed, s.Length), max(decoding, l.decoding(s))
	}
	for workers = min(l.cfg.Workers, len(l.splits)); ; workers-- {
		n := int64(workers)
		size := n*2*compressed + min(n*decoding, max(l.cfg.Decoding.capacity, decoding))
		if err = l.cfg.Budget.Reserve(size); err == nil {
			return workers, func() { l.cfg.Budget.Release(size) }, nil
		}
		if workers == 1 {
			return 0, nil, noRoom(err, "to load even one row group at a time", "or cache fewer columns")
		}
	}
}

// fetch prefetches the splits in order and passes them on.
func (l *load) fetch(ctx context.Context, next *atomic.Int64, jobs chan<- job) error {
	for {
		i := int(next.Add(1) - 1)
		if i >= len(l.splits) {
			return nil
		}
		begin := time.Now()
		var fetched source.Fetched
		err := l.retry(ctx, i, func() (err error) {
			fetched, err = l.dataset.Fetch(ctx, l.splits[i])
			return err
		})
		end := time.Now()
		l.cfg.Metrics.LoadSeconds.WithLabelValues(ops.StageFetch).Add(end.Sub(begin).Seconds())
		if err != nil {
			return err
		}
		select {
		case jobs <- job{i, fetched, begin, end}:
		case <-ctx.Done():
			fetched.Close()
			return ctx.Err()
		}
	}
}

func (l *load) decodeAll(ctx context.Context, jobs <-chan job) error {
	for j := range jobs {
		err := l.decode(ctx, j)
		if err != nil && l.mayPass(err) { // deletes are read during decoding
			err = l.retry(ctx, j.index, func() error { return l.fetchAndDecode(ctx, j.index) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *load) fetchAndDecode(ctx context.Context, index int) error {
	begin := time.Now()
	fetched, err := l.dataset.Fetch(ctx, l.splits[index])
	if err != nil {
		return err
	}
	return l.decode(ctx, job{index, fetched, begin, time.Now()})
}

// decode decodes a prefetched split to chunks and records it.
func (l *load) decode(ctx context.Context, j job) (err error) {
	split := l.splits[j.index].Info()
	defer j.fetched.Close()
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s: decoding failed: %v\n%s", split, r, debug.Stack())
		}
	}()
	defer l.cfg.Decoding.begin(l.decoding(split))()
	builder := rows.NewBuilder(l.layout, l.arena, rows.TargetBytes)
	defer builder.Close()
	var copying time.Duration
	begin := time.Now()
	for batch, err := range j.fetched.Batches(ctx) {
		if err != nil {
			return err
		}
		start := time.Now()
		err = builder.AppendKept(batch.RecordBatch, batch.Keep)
		batch.Release()
		copying += time.Since(start)
		if err != nil {
			return l.explain(split, err)
		}
	}
	start := time.Now()
	sealed, err := builder.Finish()
	copying += time.Since(start)
	if err != nil {
		return l.explain(split, err)
	}
	l.cfg.Metrics.LoadSeconds.WithLabelValues(ops.StageDecode).Add((time.Since(begin) - copying).Seconds())
	l.cfg.Metrics.LoadSeconds.WithLabelValues(ops.StageCopy).Add(copying.Seconds())
	direct, general := j.fetched.Decoders()
	l.cfg.Metrics.LoadColumns.WithLabelValues(ops.DecoderDirect).Add(float64(direct))
	l.cfg.Metrics.LoadColumns.WithLabelValues(ops.DecoderGeneral).Add(float64(general))
	l.traceSplit(ctx, j, begin, copying, sealed)
	l.keep(j.index, sealed)
	return nil
}

// keep stores a loaded split, which will then be reported.
func (l *load) keep(index int, sealed rows.Sealed) {
	l.cfg.Metrics.DecodedBytes.Add(float64(sealed.Bytes))
	l.cfg.Metrics.DecodedRows.Add(float64(sealed.Rows))
	l.cfg.Metrics.SplitsLoaded.Inc()
	l.sealed[index] = sealed
	l.progress.add(peer.SplitDone{
		Split: l.spec.First + index, Rows: sealed.Rows, Bytes: sealed.Bytes, Hash: fmt.Sprintf("%x", sealed.Hash),
	})
}

// explain adds the split to an error and, if the budget is exhausted, how much is still to be loaded.
func (l *load) explain(split source.SplitInfo, err error) error {
	loaded, bytes := l.progress.report(0)
	done, all := len(loaded), len(l.splits)
	what := fmt.Sprintf("for the rows of all %d splits (%d are loaded)", all, done)
	if done > 0 {
		what = fmt.Sprintf("for the rows of all %d splits (%d are loaded, all take about %s)", all, done, inBytes(bytes/int64(done)*int64(all)))
	}
	return fmt.Errorf("%s: %w", split, noRoom(err, what, "add data nodes, or cache fewer columns or rows"))
}

// noRoom adds to an exhausted budget what there was no room for, and what can be done besides raising the limit. Other errors are
// returned unchanged.
func noRoom(err error, what, advice string) error {
	var full *rows.ExhaustedError
	if !errors.As(err, &full) {
		return err
	}
	return &noRoomError{full, fmt.Sprintf("no room %s: %s are needed beside the %s in use, and the limit is %s, of which %s are kept for clients: "+
		"raise --memory-limit (in a cluster, the data nodes' memory), %s",
		what, inBytes(full.Need), inBytes(full.Used), inBytes(full.Limit), inBytes(full.Kept), advice)}
}

// noRoomError explains an exhausted budget.
type noRoomError struct {
	full *rows.ExhaustedError
	text string
}

func (e *noRoomError) Error() string { return e.text }
func (e *noRoomError) Unwrap() error { return e.full }

// inBytes formats n for people and for scripts.
func inBytes(n int64) string { return fmt.Sprintf("%d bytes (%.1f MiB)", n, float64(n)/(1<<20)) }
