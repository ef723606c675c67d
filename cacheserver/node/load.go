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
)

// job is a split whose column chunks were brought near.
type job struct {
	index   int // within the part
	fetched source.Fetched
}

// load brings every split of the part into memory. Fetching runs one split a worker ahead of decoding.
// The first error ends it; nothing is ever left out.
func (p *part) load(ctx context.Context) error {
	if len(p.splits) == 0 {
		return nil
	}
	workers, release, err := p.reserveMemory()
	if err != nil {
		return err
	}
	defer release()
	defer p.limiter.load()()
	group, ctx := errgroup.WithContext(ctx)
	jobs := make(chan job)
	var next atomic.Int64
	var fetchers errgroup.Group
	for range workers {
		fetchers.Go(func() error { return p.fetch(ctx, &next, jobs) })
		group.Go(func() error { return p.decodeAll(ctx, jobs) })
	}
	group.Go(func() error {
		defer close(jobs)
		return fetchers.Wait()
	})
	return group.Wait()
}

const (
	// pageRows is about how many rows a page of large values has: writers look at a page's size every 1024 values.
	pageRows = 2048
	// pageBytes is about what a column of small values takes while it is decoded: a page, at the writers' usual 1 MiB, and
	// its dictionary, of which much is dropped before the page is read.
	pageBytes = 3 << 19
	// batchBytes is for the batches under way.
	batchBytes = 12 << 20
)

// decoding is about how many bytes decoding a split takes beside the rows and its compressed bytes: an uncompressed page
// of each column, and batches.
func (p *part) decoding(s source.SplitInfo) int64 {
	columns := int64(p.layout.Schema().NumFields())
	pages := min(s.Bytes, columns*pageBytes+pageRows*(s.Bytes/max(s.Rows, 1)))
	return pages + min(s.Bytes, batchBytes)
}

// reserveMemory reserves memory for the splits under way, and lowers the number of workers until it fits: for each worker the
// compressed bytes of a split that is decoded and of the next one, and what decoding takes, see DecodeLimiter.
func (p *part) reserveMemory() (workers int, release func(), err error) {
	var compressed, decoding int64
	for _, split := range p.splits {
		s := split.Info()
		compressed, decoding = max(compressed, s.Length), max(decoding, p.decoding(s))
	}
	for workers = min(p.workers, len(p.splits)); ; workers-- {
		n := int64(workers)
		size := n*2*compressed + min(n*decoding, max(p.limiter.capacity, decoding))
		if err = p.budget.Reserve(size); err == nil {
			return workers, func() { p.budget.Release(size) }, nil
		}
		if workers == 1 {
			return 0, nil, noRoom(err, "to load even one row group at a time", "or cache fewer columns")
		}
	}
}

// fetch takes the part's splits in order and hands each on when its bytes are near.
func (p *part) fetch(ctx context.Context, next *atomic.Int64, jobs chan<- job) error {
	for {
		i := int(next.Add(1) - 1)
		if i >= len(p.splits) {
			return nil
		}
		begin := time.Now()
		var fetched source.Fetched
		err := p.retry(ctx, i, func() (err error) {
			fetched, err = p.dataset.Fetch(ctx, p.splits[i])
			return err
		})
		p.metrics.LoadSeconds.WithLabelValues(ops.StageFetch).Add(time.Since(begin).Seconds())
		if err != nil {
			return err
		}
		select {
		case jobs <- job{i, fetched}:
		case <-ctx.Done():
			fetched.Close()
			return ctx.Err()
		}
	}
}

func (p *part) decodeAll(ctx context.Context, jobs <-chan job) error {
	for j := range jobs {
		err := p.decode(ctx, j)
		if err != nil && p.mayPass(err) { // deletes are read while decoding
			err = p.retry(ctx, j.index, func() error { return p.fetchAndDecode(ctx, j.index) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *part) fetchAndDecode(ctx context.Context, index int) error {
	fetched, err := p.dataset.Fetch(ctx, p.splits[index])
	if err != nil {
		return err
	}
	return p.decode(ctx, job{index, fetched})
}

// decode turns one fetched split into chunks and reports it.
func (p *part) decode(ctx context.Context, j job) (err error) {
	split := p.splits[j.index].Info()
	defer j.fetched.Close()
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s: decoding failed: %v\n%s", split, r, debug.Stack())
		}
	}()
	defer p.limiter.begin(p.decoding(split))()
	builder := rows.NewBuilder(p.layout, p.arena, rows.TargetBytes)
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
			return p.explain(split, err)
		}
	}
	start := time.Now()
	sealed, err := builder.Finish()
	copying += time.Since(start)
	if err != nil {
		return p.explain(split, err)
	}
	p.metrics.LoadSeconds.WithLabelValues(ops.StageDecode).Add((time.Since(begin) - copying).Seconds())
	p.metrics.LoadSeconds.WithLabelValues(ops.StageCopy).Add(copying.Seconds())
	direct, general := j.fetched.Decoders()
	p.metrics.LoadColumns.WithLabelValues(ops.DecoderDirect).Add(float64(direct))
	p.metrics.LoadColumns.WithLabelValues(ops.DecoderGeneral).Add(float64(general))
	p.keep(j.index, sealed)
	return nil
}

// keep files a loaded split and makes it reportable.
func (p *part) keep(index int, sealed rows.Sealed) {
	p.metrics.DecodedBytes.Add(float64(sealed.Bytes))
	p.metrics.DecodedRows.Add(float64(sealed.Rows))
	p.metrics.SplitsLoaded.Inc()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sealed[index] = sealed
	p.bytes += sealed.Bytes
	p.done = append(p.done, peer.SplitDone{
		Split: p.assign.First + index, Rows: sealed.Rows, Bytes: sealed.Bytes, Hash: fmt.Sprintf("%x", sealed.Hash),
	})
}

// explain says which split an error is of and, of a full budget, how much there is to come.
func (p *part) explain(split source.SplitInfo, err error) error {
	p.mu.Lock()
	done, bytes := len(p.done), p.bytes
	p.mu.Unlock()
	all := len(p.splits)
	what := fmt.Sprintf("for the rows of all %d splits (%d are loaded)", all, done)
	if done > 0 {
		what = fmt.Sprintf("for the rows of all %d splits (%d are loaded, all take about %s)", all, done, inBytes(bytes/int64(done)*int64(all)))
	}
	return fmt.Errorf("%s: %w", split, noRoom(err, what, "add data nodes, or cache fewer columns or rows"))
}

// noRoom says of a full budget what there was no room for, and what to do beside raising the limit. Other errors stay.
func noRoom(err error, what, advice string) error {
	var full *rows.ExhaustedError
	if !errors.As(err, &full) {
		return err
	}
	return &noRoomError{full, fmt.Sprintf("no room %s: %s are needed beside the %s in use, and the limit is %s, of which %s are kept for clients: "+
		"raise --memory-limit (in a cluster, the data nodes' memory), %s",
		what, inBytes(full.Need), inBytes(full.Used), inBytes(full.Limit), inBytes(full.Kept), advice)}
}

// noRoomError is a full budget in words.
type noRoomError struct {
	full *rows.ExhaustedError
	text string
}

func (e *noRoomError) Error() string { return e.text }
func (e *noRoomError) Unwrap() error { return e.full }

// inBytes is for people and for scripts.
func inBytes(n int64) string { return fmt.Sprintf("%d bytes (%.1f MiB)", n, float64(n)/(1<<20)) }
