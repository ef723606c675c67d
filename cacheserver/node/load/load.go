// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package load loads the splits that are assigned to a data node into its memory.
package load

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/retry"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/spill"
	"github.com/kubeflow/datacache/internal/tracing"
	"github.com/kubeflow/datacache/internal/words"
)

// Config configures loads.
type Config struct {
	role.Config
	Workers int      // number of row groups decoded concurrently
	Limiter *Limiter // of this process

	Spill        *spill.Dir // where the rows are stored too, so that they may be dropped from memory; nil: nowhere
	SpillRemoved bool       // the files are removed with the rows, instead of being left for the next process
	Sharers      int        // the number of nodes that share the budget; 0: one
}

// load is the process of loading one assignment. It is dropped when loading ends, together with the splits, footers and deletes. Only
// Run and the goroutines that it waits for may use it.
type load struct {
	*Config
	spec     peer.Assign
	arena    *offheap.Arena
	progress *Progress
	early    *Early

	differences atomic.Int64 // numbers of the dataset that differ from its rows

	dataset source.Dataset
	splits  []source.Split
	layout  *rows.Layout
	sealed  []rows.Sealed // by split; set by the goroutine that decodes it

	spillState
	estimated atomic.Int64 // sum of the estimates of the splits that are loaded
}

// Run opens the assigned version and loads all splits into the arena. It records its progress, and in early what is loaded.
func Run(ctx context.Context, cfg *Config, spec peer.Assign, arena *offheap.Arena, progress *Progress, early *Early) (*rows.Layout, *rows.Rows, error) {
	l := &load{Config: cfg, spec: spec, arena: arena, progress: progress, early: early, sealed: make([]rows.Sealed, spec.Splits)}
	var err error
	if l.splits, err = source.DecodeSplits(spec.Part); err != nil {
		return nil, nil, err
	}
	if len(l.splits) != spec.Splits {
		return nil, nil, fmt.Errorf("the assigned part has %d splits, want %d", len(l.splits), spec.Splits)
	}
	l.serving, l.backings = ctx, make([]*backing, len(l.splits))
	l.encoded = sync.OnceValue(func() []byte { return encodeSchema(l.layout.Schema()) })
	l.restore()
	if l.layout != nil {
		l.early.open(l.layout, l.splits, l.Budget)
	}
	if l.restored < len(l.splits) || len(l.splits) == 0 {
		err = l.loadMissing(ctx)
	}
	var chunks []*rows.Chunk
	for _, s := range l.sealed {
		chunks = append(chunks, s.Chunks...)
	}
	var loaded *rows.Rows
	if err == nil {
		loaded, err = rows.NewRows(l.layout, chunks)
	}
	if err != nil {
		l.closeFiles()
		return nil, nil, err
	}
	free := l.setAside(loaded.Chunks().Largest())
	loaded.Finally(func() {
		l.closeFiles()
		free()
	})
	l.dataset = nil // reading chunks opens it again if it must
	return l.layout, loaded, nil
}

// loadMissing opens the version and loads the splits that were not restored.
func (l *load) loadMissing(ctx context.Context) error {
	openCtx, span := tracing.Child(ctx, "open")
	err := l.open(openCtx)
	tracing.End(span, err)
	if err != nil {
		return err
	}
	if l.layout == nil {
		if l.layout, err = rows.NewLayout(l.dataset.Schema()); err != nil {
			return err
		}
		l.early.open(l.layout, l.splits, l.Budget)
	}
	l.seed()
	return l.loadAll(ctx)
}

// seed has splits loaded in the order in which the first epoch needs them, if the head knows it.
func (l *load) seed() {
	first := l.spec.FirstEpoch
	if first == nil {
		return
	}
	cursor, err := first.Cursor(uint64(first.Rows))
	if err != nil {
		l.Log.Warn("the first epoch has no effect on the order of loading", "reason", err)
		return
	}
	cursor.Within(uint64(first.Own[0]), uint64(first.Own[1]))
	l.early.seed(cursor)
}

// loadAll loads every split. Each core decodes one while another is fetched for it. The first error ends the load; nothing is ever skipped.
func (l *load) loadAll(ctx context.Context) error {
	if err := l.checkRoom(); err != nil {
		return err
	}
	defer l.Limiter.load()()
	group, ctx := errgroup.WithContext(ctx)
	for range min(2*l.Workers, len(l.splits)) {
		group.Go(func() error {
			for i, ok := l.early.demand.start(); ok; i, ok = l.early.demand.start() {
				if l.backings[i] != nil { // it was restored
					continue
				}
				if err := l.retry(ctx, i, func() error { return l.loadSplit(ctx, i) }); err != nil {
					return err
				}
			}
			return nil
		})
	}
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
func (l *load) decoding(s source.Split) (pages, batches int64) {
	columns := int64(l.layout.Schema().NumFields())
	pages = min(s.Bytes, columns*pageBytes+pageRows*(s.Bytes/max(s.Rows, 1)))
	return pages, min(s.Bytes, batchBytes)
}

// rowBytes estimates the bytes of a split's rows. Estimates are corrected by the splits that are loaded: a footer doesn't tell how long the
// strings of a dictionary are, nor how many rows a filter keeps. guessed says that none is loaded.
func (l *load) rowBytes(index int) (kept int64, guessed bool) {
	kept = l.splits[index].Bytes
	estimated := l.estimated.Load()
	if estimated > 0 {
		_, _, bytes := l.progress.Loaded()
		kept = int64(float64(kept) * float64(bytes) / float64(estimated))
	}
	return kept, estimated == 0
}

// need is the memory for loading a split.
func (l *load) need(index int) need {
	if l.again != nil {
		return l.again.need
	}
	return l.needWithin(index, l.room())
}

// needWithin is the memory for loading a split. The bytes of a row group that is too large to be prefetched within room are read in windows.
func (l *load) needWithin(index int, room int64) need {
	s := l.splits[index]
	kept, guessed := l.rowBytes(index)
	s.Bytes = max(s.Bytes, kept)
	pages, batches := l.decoding(s)
	n := need{compressed: s.Length, decoding: pages + batches, pages: pages, rows: kept, guessed: guessed}
	if l.passing() {
		n.rows = min(kept, 2*(passingBytes+s.Bytes/max(s.Rows, 1)))
	}
	if n.working()+n.rows > room && l.inWindows() {
		columns := int64(l.layout.Schema().NumFields())
		n.window = min(max((room-n.decoding-n.rows)/columns, leastWindow), mostWindow)
		n.compressed = min(s.Length, columns*n.window)
	}
	return n
}

const (
	leastWindow = 64 << 10 // less is read at a time anyway
	mostWindow  = 4 << 20
)

// room is this node's share of the memory for rows and loading.
func (l *load) room() int64 { return (l.Budget.Limit() - l.Budget.Kept()) / int64(max(1, l.Sharers)) }

// inWindows reports whether all columns are decoded page by page: a column of structs, maps or lists of lists needs its whole column chunk.
func (l *load) inWindows() bool {
	for _, f := range l.layout.Schema().Fields() {
		value := f.Type
		if list, ok := value.(arrow.ListLikeType); ok {
			value = list.Elem()
		}
		if extension, ok := value.(arrow.ExtensionType); ok {
			value = extension.StorageType()
		}
		if arrow.IsNested(value.ID()) {
			return false
		}
	}
	return true
}

// checkRoom returns an error if a split can't be loaded even by itself, as nothing else is in memory, or if its rows, which are in files then, can't be served.
func (l *load) checkRoom() error {
	most, of := int64(0), 0
	for i := range l.splits {
		n := l.need(i)
		if l.passing() {
			n.decoding += n.rows
		}
		if l.Spill != nil {
			n.decoding = max(n.decoding, l.leastServing(i)-n.compressed)
		}
		if n.working() > most {
			most, of = n.working(), i
		}
	}
	if b := l.Budget; most > b.Limit()-b.Kept() {
		return fmt.Errorf("%s: %w", l.splits[of], noRoomForOne(&offheap.ExhaustedError{Need: most, Used: b.Used(), Limit: b.Limit(), Kept: b.Kept()}))
	}
	return nil
}

// noRoomForOne explains an error of reserving the memory for loading one split.
func noRoomForOne(err error) error {
	return noRoom(err, "to load even one row group at a time", "cache fewer columns, or write the table with smaller pages and row groups")
}

// loadSplit loads a split into memory, as often as it must make room for others.
func (l *load) loadSplit(ctx context.Context, index int) error {
	for {
		admission, err := l.Limiter.admit(ctx, l.Budget, func() need { return l.need(index) })
		if err != nil {
			return fmt.Errorf("%s: %w", l.splits[index], noRoomForOne(err))
		}
		err = l.fetchAndDecode(ctx, index, admission)
		var full *offheap.ExhaustedError
		again := errors.As(err, &full) && admission.retreat()
		admission.end()
		if !again {
			return err
		}
	}
}

// job is a split that was fetched.
type job struct {
	index      int // within the assignment
	fetched    source.Fetched
	begin, end time.Time // when they were
}

func (l *load) fetchAndDecode(ctx context.Context, index int, a *admission) error {
	begin := time.Now()
	fetched, err := l.dataset.Fetch(ctx, l.splits[index], a.need.window)
	end := time.Now()
	l.Metrics.LoadSeconds.WithLabelValues(ops.StageFetch).Add(end.Sub(begin).Seconds())
	if err != nil {
		return err
	}
	return l.decode(ctx, job{index, fetched, begin, end}, a)
}

// decode decodes a fetched split to chunks and records it.
func (l *load) decode(ctx context.Context, j job, a *admission) (err error) {
	split := l.splits[j.index]
	defer j.fetched.Close()
	builder, err := l.builder(j.index)
	if err != nil {
		return fmt.Errorf("%s: %w", split, err)
	}
	defer func() {
		if err != nil {
			builder.discard()
		}
	}()
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s: decoding failed: %v\n%s", split, r, debug.Stack())
		}
	}()
	defer l.Limiter.begin(a.need.decoding)()
	estimate := a.need.rows
	var copying time.Duration
	begin := time.Now()
	for batch, err := range j.fetched.Batches(ctx, a.room) {
		if err != nil {
			return err
		}
		start := time.Now()
		err = builder.Append(batch.RecordBatch, batch.Keep)
		batch.Release()
		copying += time.Since(start)
		if err != nil {
			return l.explain(split, err)
		}
		if builder.out == nil {
			a.built(builder.Reserved(), estimate)
		}
	}
	start := time.Now()
	sealed, err := builder.finish(split)
	copying += time.Since(start)
	if err != nil {
		return l.explain(split, err)
	}
	l.Metrics.LoadSeconds.WithLabelValues(ops.StageDecode).Add((time.Since(begin) - copying).Seconds())
	l.Metrics.LoadSeconds.WithLabelValues(ops.StageCopy).Add(copying.Seconds())
	report := j.fetched.Report()
	l.Metrics.LoadColumns.WithLabelValues(ops.DecoderDirect).Add(float64(report.Direct))
	l.Metrics.LoadColumns.WithLabelValues(ops.DecoderGeneral).Add(float64(report.General))
	l.differ(split, report.Differences)
	l.traceSplit(ctx, j, begin, copying, sealed)
	l.keep(j.index, sealed)
	return nil
}

// differ logs numbers of the dataset that differ from its rows; of a whole load only the first few in full.
func (l *load) differ(split source.Split, differences []string) {
	for _, d := range differences {
		if n := l.differences.Add(1); n <= mostDifferences {
			l.Log.Warn("the table states a number that its rows don't have; cacheserver audit lists all of them", "split", split.String(), "difference", d)
		}
	}
}

// mostDifferences is how many differences a load logs.
const mostDifferences = 10

// keep stores a loaded split, which will then be reported.
func (l *load) keep(index int, sealed rows.Sealed) {
	l.Metrics.DecodedBytes.Add(float64(sealed.Bytes))
	l.Metrics.DecodedRows.Add(float64(sealed.Rows))
	l.Metrics.SplitsLoaded.Inc()
	l.sealed[index] = sealed
	l.early.add(index, sealed)
	l.progress.add(peer.SplitDone{
		Split: l.spec.First + index, Rows: sealed.Rows, Bytes: sealed.Bytes, Hash: sealed.Hash[:],
	})
	l.estimated.Add(l.splits[index].Bytes)
}

// explain adds the split to an error and, if the budget is exhausted, how much is still to be loaded.
func (l *load) explain(split source.Split, err error) error {
	loaded, _ := l.progress.Report(0)
	var total int64
	for i := range l.splits {
		kept, _ := l.rowBytes(i)
		total += kept
	}
	what := fmt.Sprintf("for the rows of all %d splits (%d are loaded, all take about %s)", len(l.splits), len(loaded), words.ExactBytes(total))
	advice := "add data nodes, cache fewer columns or rows"
	if l.Spill == nil {
		advice += fmt.Sprintf(", or give each data node %s of a local disk: --spill-dir (in a cluster, spec.arrow.spill or SPILL_LIMIT)", words.Bytes(float64(total)))
	}
	return fmt.Errorf("%s: %w", split, noRoom(err, what, advice))
}

// noRoom adds to an exhausted budget what there was no room for, and what can be done besides raising the limit. Other errors are
// returned unchanged.
func noRoom(err error, what, advice string) error {
	var full *offheap.ExhaustedError
	if !errors.As(err, &full) {
		return err
	}
	return &noRoomError{full, fmt.Sprintf("no room %s: %s are needed beside the %s in use, and the limit is %s, of which %s are kept for clients: "+
		"raise --memory-limit (in a cluster, the data nodes' memory), %s",
		what, words.ExactBytes(full.Need), words.ExactBytes(full.Used), words.ExactBytes(full.Limit), words.ExactBytes(full.Kept), advice)}
}

// noRoomError explains an exhausted budget.
type noRoomError struct {
	full *offheap.ExhaustedError
	text string
}

func (e *noRoomError) Error() string { return e.text }
func (e *noRoomError) Unwrap() error { return e.full }

// retry retries a step of loading while its error may be temporary; index is that of the split in the assignment, or Whole.
func (l *load) retry(ctx context.Context, index int, step func() error) error {
	return retry.Do(ctx, l.mayPass, func(trouble string) { l.progress.Note(index, trouble) }, step)
}

// mayPass reports whether a failed step should be retried. In a cache that was Ready this includes errors that somebody must fix,
// such as missing permissions, since the rows of the other nodes are worth keeping.
func (l *load) mayPass(err error) bool {
	may := l.Source.Retry(err)
	if may == source.Soon {
		return true
	}
	var full *offheap.ExhaustedError
	return l.spec.Ready && (may == source.OnceMended || errors.As(err, &full))
}
