// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package packing plans the packs of windows of rows, each window once for all ranks that ask.
package packing

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/pack"
	"github.com/kubeflow/datacache/cacheserver/protocol"
)

const (
	// windowsMemory bounds the windows that a head keeps.
	windowsMemory = 64 << 20
	// MostPlanned is how many windows may be planned at a time.
	MostPlanned = 8
	// mostWindowRows is how many rows a window may have.
	mostWindowRows = 1 << 20
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

// Rows is what is packed: the rows of a request's selection, in its order. All fields are required.
type Rows struct {
	Fingerprint string // of the selection
	Len         int64
	Column      int // of the lengths
	// Lengths returns the rows at the positions [from, to), and their lengths.
	Lengths func(ctx context.Context, from, to uint64) (Sequence, error)
	// Longer counts the rows that have more than most tokens.
	Longer func(ctx context.Context, most int32) (Long, error)
}

// Sequence is rows in some order, and their lengths.
type Sequence struct {
	Rows    []int64 // of the selection
	Lengths []int32
}

// Long is the rows that are too long.
type Long struct {
	Count  int64
	Row    int64 // number of the first such row; -1: not known
	Length int32 // length of the first such row
}

// Windows are the windows of packs that were planned, the last used of them. Make it with New; it is safe for concurrent use.
type Windows struct {
	clients offheap.Clients
	working *semaphore.Weighted

	mu    sync.Mutex
	held  map[windowKey]*Window
	used  *list.List // of the keys of those that are planned, the last used first
	bytes int64      // of these
	mean  float64    // length of the rows that were read last

	counted map[countKey]Long
}

// New returns no windows yet. Their memory is that of clients.
func New(clients offheap.Clients) *Windows {
	most := min(MostPlanned, max(1, runtime.GOMAXPROCS(0)/2))
	return &Windows{clients: clients, working: semaphore.NewWeighted(int64(most)), held: map[windowKey]*Window{}, used: list.New(), mean: usualMean, counted: map[countKey]Long{}}
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

// Longer counts the rows that have more than most tokens.
func (p *Windows) Longer(ctx context.Context, of Rows, most int32) (Long, error) {
	key := countKey{of.Fingerprint, of.Column, most}
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
	found, err := of.Longer(ctx, most)
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

// Window is a window that is being planned or, once ready is closed, is planned or could not be.
type Window struct {
	ready chan struct{}
	err   error
	*Plan               // nil until then
	use   *list.Element // in the list of used ones; nil before it is planned; protected by the mu of Windows

	mu    sync.Mutex
	world uint64 // for which dealt is
	dealt []pack.Dealt
}

// Plan is what is planned of a window. It is immutable.
type Plan struct {
	*pack.Window
	Numbers []int64               // of the rows in the selection, by their place in the window
	About   []protocol.PackedStep // what is the same for all ranks of each step; the fields for one rank are not set
}

// size is the memory that the plan takes.
func (p *Plan) size() int64 {
	return int64(len(p.Numbers))*8 + int64(len(p.Pieces))*pieceBytes + int64(len(p.Ends))*packBytes
}

// describe sets the steps of a plan whose window begins at a position.
func (p *Plan) describe(position uint64) {
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
		p.About = append(p.About, one)
	}
}

// Share returns the packs of a rank of a step, by micro-batch; -1: none.
func (w *Window) Share(step int, s epoch.Share) []int32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.world != s.World {
		w.world, w.dealt = s.World, nil
		for i := range w.Steps() {
			first, end := w.Step(i)
			w.dealt = append(w.dealt, pack.Deal(w.Costs[first:end], s.World))
		}
	}
	return w.dealt[step].Of(s.Rank)
}

// Get returns the window of a request that begins at a position. Requests for the same window wait for the first one of them.
func (p *Windows) Get(ctx context.Context, of Rows, r protocol.Request, position uint64) (*Window, error) {
	key := windowKey{of.Fingerprint, r.Epoch, r.Packs.Law, of.Column, position}
	for {
		p.mu.Lock()
		w := p.held[key]
		first := w == nil
		if first {
			w = &Window{ready: make(chan struct{})}
			p.held[key] = w
		}
		if w.use != nil {
			p.used.MoveToFront(w.use)
		}
		p.mu.Unlock()
		if first {
			made, err := p.make(ctx, of, r, position)
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
func (p *Windows) keep(key windowKey, w *Window, made *Plan, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.Plan, w.err = made, err
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
func (p *Windows) dropLocked() bool {
	last := p.used.Back()
	if last == nil {
		return false
	}
	oldest := p.used.Remove(last).(windowKey)
	size := p.held[oldest].size()
	delete(p.held, oldest)
	p.bytes -= size
	p.clients.Release(size)
	return true
}

// Reserve reserves memory, for which it drops windows if need be.
func (p *Windows) Reserve(bytes int64) error {
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
func (p *Windows) make(ctx context.Context, of Rows, r protocol.Request, position uint64) (made *Plan, err error) {
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
		err := p.Reserve(bytes)
		if err == nil {
			taken += bytes
		}
		return err
	}
	all, err := p.read(ctx, of, r, position, reserve)
	if err != nil {
		return nil, err
	}
	packed, err := r.Packs.Pack(all.Lengths, r.Epoch.Seed, r.Epoch.Number, position)
	var tooLong *pack.LongError
	if errors.As(err, &tooLong) {
		return nil, LongError(r, Long{1, all.Rows[tooLong.Row], tooLong.Length}, 0)
	}
	if err != nil {
		return nil, err
	}
	made = &Plan{Window: packed, Numbers: slices.Clone(all.Rows[:packed.Rows])}
	made.describe(position)
	return made, nil
}

// read reads the lengths of the rows of a window, and of some more rows.
func (p *Windows) read(ctx context.Context, of Rows, r protocol.Request, position uint64, reserve func(int64) error) (all Sequence, err error) {
	packs := r.Packs.Room() / int64(r.Packs.Tokens)
	if err := reserve(packs*(packBytes+2*pieceBytes) + int64(r.Packs.Tokens)*tokenBytes); err != nil {
		return all, err
	}
	for tokens, room := int64(0), r.Packs.Room(); tokens <= room && position+uint64(len(all.Rows)) < uint64(of.Len); {
		next := position + uint64(len(all.Rows))
		count := min(uint64(of.Len)-next, p.ahead(room-tokens))
		if len(all.Rows)+int(count) > mostWindowRows {
			return all, status.Errorf(codes.FailedPrecondition, "packs: the window at position %d has more than %d rows: use fewer tokens, packs or steps of a window", position, mostWindowRows)
		}
		if err := reserve(int64(count) * rowBytes); err != nil {
			return all, err
		}
		some, err := of.Lengths(ctx, next, next+count)
		if err != nil {
			return all, err
		}
		sum := int64(0)
		for _, length := range some.Lengths {
			sum += r.Packs.Size(length)
		}
		tokens += sum
		p.setMean(float64(sum) / float64(count))
		all.Rows, all.Lengths = append(all.Rows, some.Rows...), append(all.Lengths, some.Lengths...)
	}
	return all, nil
}

// ahead is how many rows' lengths to read next, to have some tokens more.
func (p *Windows) ahead(tokens int64) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	rows := float64(tokens) / max(p.mean, 1)
	return uint64(min(max(rows*1.02+32, leastRead), mostRead))
}

func (p *Windows) setMean(mean float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mean = mean
}

// LongError is the error of a request whose rows are too long.
func LongError(r protocol.Request, found Long, rows int64) error {
	which, limit := "one has", fmt.Sprintf("tokens = %d", r.Packs.Tokens)
	if found.Row >= 0 {
		which = fmt.Sprintf("row %d has", found.Row)
	}
	if rows > 0 {
		which = fmt.Sprintf("%d of %d rows are too long, of which %s", found.Count, rows, which)
	}
	fix := `set long to "split", "truncate" or "drop", use more tokens`
	if r.Packs.Long == pack.Split {
		limit = fmt.Sprintf("the packs of a window have, %d", r.Packs.Room())
		fix = `use a larger window or more tokens, set long to "truncate" or "drop"`
	}
	return status.Errorf(codes.InvalidArgument, `command: column %q: %s %d tokens, more than %s: %s, or leave the rows out with a filter`,
		r.Packs.Column, which, found.Length, limit, fix)
}
