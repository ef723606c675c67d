// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"container/list"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/pack"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/rows"
)

const (
	// windowsMemory bounds the windows that a head keeps.
	windowsMemory = 64 << 20
	// mostPlanned is how many windows may be planned at a time, and mostWindowRows how many rows one may have.
	mostPlanned, mostWindowRows = 8, 1 << 20
	// rowBytes, packBytes and tokenBytes are the memory that a row, a pack and a token of a pack take while a window is planned. A plan takes
	// pieceBytes for each piece, and no more than packBytes for a pack.
	rowBytes, packBytes, pieceBytes, tokenBytes = 96, 64, 12, 8
	// mostCounted is how many counts of long rows are remembered.
	mostCounted = 256
	// leastRead and mostRead are how many rows' lengths are read at a time.
	leastRead, mostRead = 1 << 10, 1 << 17
	// usualMean is the guess of the mean length before any was read.
	usualMean = 512
)

// windows are the windows of packs that a head has planned, the last used of them. It is safe for concurrent use.
type windows struct {
	lengths func(ctx context.Context, v *view, r protocol.Request, column int, from, to uint64) (sequence, error)
	count   func(ctx context.Context, v *view, column int, most int32) (long, error)
	clients rows.Clients
	working *semaphore.Weighted

	mu    sync.Mutex
	held  map[windowKey]*window
	used  *list.List // of the keys of those that are planned, the last used first
	bytes int64      // of these
	mean  float64    // length of the rows that were read last

	counted map[countKey]long
}

func newWindows(c *cluster, clients rows.Clients) *windows {
	most := min(mostPlanned, max(1, runtime.GOMAXPROCS(0)/2))
	m := measures{c}
	return &windows{lengths: m.lengths, count: m.longRows, clients: clients, working: semaphore.NewWeighted(int64(most)), held: map[windowKey]*window{}, used: list.New(), mean: usualMean, counted: map[countKey]long{}}
}

// windowKey is what a window depends on.
type windowKey struct {
	rows     string // fingerprint of the selection
	epoch    epoch.Epoch
	law      pack.Law
	column   int
	position uint64
}

// countKey is what a count of long rows depends on.
type countKey struct {
	rows   string // fingerprint of the selection
	column int
	most   int32
}

// fingerprint is that of the rows of the selection.
func (v *view) fingerprint() string {
	if v.selection != nil {
		return v.selection.fingerprint
	}
	return v.plan.dataset.Fingerprint
}

// longRows counts the rows that have more than most tokens.
func (p *windows) longRows(ctx context.Context, v *view, column int, most int32) (long, error) {
	key := countKey{v.fingerprint(), column, most}
	p.mu.Lock()
	found, ok := p.counted[key]
	p.mu.Unlock()
	if ok {
		return found, nil
	}
	if err := p.working.Acquire(ctx, 1); err != nil {
		return found, status.FromContextError(err).Err()
	}
	defer p.working.Release(1)
	found, err := p.count(ctx, v, column, most)
	if err != nil {
		return found, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.counted) >= mostCounted {
		clear(p.counted)
	}
	p.counted[key] = found
	return found, nil
}

// window is a window that is being planned or, once ready is closed, is planned or could not be.
type window struct {
	ready chan struct{}
	err   error
	plan  *plan
	use   *list.Element // in the list of used ones; nil before it is planned; protected by the mu of windows

	mu    sync.Mutex
	world uint64 // for which dealt is
	dealt []pack.Dealt
}

// plan is what is planned of a window. It is immutable.
type plan struct {
	*pack.Window
	rows  []int64               // of the selection, by their place in the window
	steps []protocol.PackedStep // without what depends on a rank
}

// size is the memory that the plan takes.
func (p *plan) size() int64 {
	return int64(len(p.rows))*8 + int64(len(p.Pieces))*pieceBytes + int64(len(p.Ends))*packBytes
}

// describe sets the steps of a plan whose window begins at a position.
func (p *plan) describe(position uint64) {
	for step := range p.Steps() {
		one := protocol.PackedStep{Position: position, Step: step, Next: [2]uint64{position, uint64(step + 1)}}
		if step == 0 {
			one.Counts = p.Counts
		}
		if step+1 == p.Steps() {
			one.Next = [2]uint64{position + uint64(p.Rows), 0}
		}
		for i, end := p.Step(step); i < end; i++ {
			own := p.Pack(i)
			one.Sequences += len(own)
			for _, piece := range own {
				one.Tokens += int64(piece.Length)
			}
		}
		p.steps = append(p.steps, one)
	}
}

// share returns the packs of a rank of a step, by micro-batch; -1: none.
func (w *window) share(step int, s epoch.Share) []int32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.world != s.World {
		w.world, w.dealt = s.World, nil
		for i := range w.plan.Steps() {
			first, end := w.plan.Step(i)
			w.dealt = append(w.dealt, pack.Deal(w.plan.Costs[first:end], s.World))
		}
	}
	return w.dealt[step].Of(s.Rank)
}

// get returns the window of a request that begins at a position. Requests for the same window wait for the first one of them.
func (p *windows) get(ctx context.Context, v *view, r protocol.Request, column int, position uint64) (*window, error) {
	key := windowKey{v.fingerprint(), r.Epoch, r.Packs.Law, column, position}
	for {
		p.mu.Lock()
		w := p.held[key]
		first := w == nil
		if first {
			w = &window{ready: make(chan struct{})}
			p.held[key] = w
		}
		if w.use != nil {
			p.used.MoveToFront(w.use)
		}
		p.mu.Unlock()
		if first {
			made, err := p.make(ctx, v, r, column, position)
			p.keep(key, w, made, err)
		}
		select {
		case <-w.ready:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		if code := status.Code(w.err); first || code != codes.Canceled && code != codes.DeadlineExceeded {
			return w, w.err
		}
	}
}

// keep sets the plan of a window, or why there is none. It drops the windows that were not used for the longest time, and one without a plan at
// once.
func (p *windows) keep(key windowKey, w *window, made *plan, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.plan, w.err = made, err
	close(w.ready)
	if err != nil {
		delete(p.held, key)
		return
	}
	w.use = p.used.PushFront(key)
	for p.bytes += made.size(); p.bytes > windowsMemory; {
		p.dropLocked()
	}
}

// dropLocked drops the window that was not used for the longest time; false: there is none.
func (p *windows) dropLocked() bool {
	last := p.used.Back()
	if last == nil {
		return false
	}
	oldest := p.used.Remove(last).(windowKey)
	size := p.held[oldest].plan.size()
	delete(p.held, oldest)
	p.bytes -= size
	p.clients.Release(size)
	return true
}

// reserve reserves memory, for which it drops windows if need be.
func (p *windows) reserve(bytes int64) error {
	for {
		err := p.clients.Extend(bytes)
		if err == nil {
			return nil
		}
		p.mu.Lock()
		dropped := p.dropLocked()
		p.mu.Unlock()
		if !dropped {
			return status.Errorf(codes.ResourceExhausted, "packs: %v: ask again later, or give the head more memory", err)
		}
	}
}

// make plans a window: it reads the lengths of the next rows and packs them. The memory of the plan stays reserved.
func (p *windows) make(ctx context.Context, v *view, r protocol.Request, column int, position uint64) (made *plan, err error) {
	if err := p.working.Acquire(ctx, 1); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	defer p.working.Release(1)
	var taken int64
	defer func() {
		if err == nil {
			taken -= made.size()
		}
		p.clients.Release(taken)
	}()
	reserve := func(bytes int64) error {
		err := p.reserve(bytes)
		if err == nil {
			taken += bytes
		}
		return err
	}
	all, err := p.read(ctx, v, r, column, position, reserve)
	if err != nil {
		return nil, err
	}
	packed, err := r.Packs.Pack(all.lengths, r.Epoch.Seed, r.Epoch.Number, position)
	var tooLong *pack.LongError
	if errors.As(err, &tooLong) {
		return nil, longError(r, long{1, all.rows[tooLong.Row], tooLong.Length}, 0)
	}
	if err != nil {
		return nil, err
	}
	made = &plan{Window: packed, rows: slices.Clone(all.rows[:packed.Rows])}
	made.describe(position)
	return made, nil
}

// read reads the lengths of the rows of a window, and of some more rows.
func (p *windows) read(ctx context.Context, v *view, r protocol.Request, column int, position uint64, reserve func(int64) error) (all sequence, err error) {
	packs := r.Packs.Room() / int64(r.Packs.Tokens)
	if err := reserve(packs*(packBytes+2*pieceBytes) + int64(r.Packs.Tokens)*tokenBytes); err != nil {
		return all, err
	}
	for tokens, room := int64(0), r.Packs.Room(); tokens <= room && position+uint64(len(all.rows)) < uint64(v.rows); {
		next := position + uint64(len(all.rows))
		count := min(uint64(v.rows)-next, p.ahead(room-tokens))
		if len(all.rows)+int(count) > mostWindowRows {
			return all, status.Errorf(codes.FailedPrecondition, "packs: the window at position %d has more than %d rows: use fewer tokens, packs or steps of a window", position, mostWindowRows)
		}
		if err := reserve(int64(count) * rowBytes); err != nil {
			return all, err
		}
		some, err := p.lengths(ctx, v, r, column, next, next+count)
		if err != nil {
			return all, err
		}
		sum := int64(0)
		for _, length := range some.lengths {
			sum += r.Packs.Size(length)
		}
		tokens += sum
		p.setMean(float64(sum) / float64(count))
		all.rows, all.lengths = append(all.rows, some.rows...), append(all.lengths, some.lengths...)
	}
	return all, nil
}

// ahead is how many rows' lengths to read next, to have some tokens more.
func (p *windows) ahead(tokens int64) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	rows := float64(tokens) / max(p.mean, 1)
	return uint64(min(max(rows*1.02+32, leastRead), mostRead))
}

func (p *windows) setMean(mean float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mean = mean
}
