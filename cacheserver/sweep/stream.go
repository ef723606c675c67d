// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"context"
	"slices"
	"sync/atomic"
	"time"
)

// account is the memory of a stream and of its successor, which follow each other. Sweep.mu protects it, except lent.
type account struct {
	used       int64   // estimate of the bytes in parts
	parts      []*Part // that were not released, the oldest first
	incomplete int     // of these, parts that miss rows
	begun      int64   // Sweep.travelled when the youngest was begun

	lent atomic.Int64 // estimate of the bytes in released parts that unsent messages still refer to
}

// Stream is the rows of one stream. Its methods, and the walk, are called by one goroutine.
type Stream struct {
	sweep *Sweep
	walk  Walk
	key   string
	list  []piece // of newPart: the memory of one serves the next

	// Protected by Sweep.mu.
	account *account
	parts   []*Part   // that were not released, the oldest first
	open    bool      // it is no successor any more
	waits   bool      // in Next
	ended   bool      // the walk has
	next    *Stream   // the successor
	since   time.Time // of a successor: since when it waits for its stream
}

// Open adds a stream. Streams with equal keys, unless they are empty, have the same rows: if one was left over by Then, its parts are used and
// walk, which goes on where that one's ended, is not. The caller closes the stream.
func (s *Sweep) Open(key string, walk Walk) *Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.parked[key]
	if st == nil || key == "" {
		st = &Stream{sweep: s, walk: walk, key: key}
		s.joinLocked(st, &account{begun: s.travelled})
	}
	delete(s.parked, key)
	st.open = true
	s.startLocked()
	return st
}

// Then says which stream probably follows this one, such as the next epoch's. Its parts are begun when this one's walk has ended, and kept for a
// while after this one was closed.
func (st *Stream) Then(key string, walk Walk) {
	s := st.sweep
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.next == nil && s.parked[key] == nil {
		st.next = &Stream{sweep: s, walk: walk, key: key}
		s.joinLocked(st.next, st.account)
	}
}

// Close ends the stream. Its successor is kept if all parts of this one were released.
func (st *Stream) Close() {
	s := st.sweep
	s.mu.Lock()
	defer s.mu.Unlock()
	if next := st.next; next != nil {
		if st.ended && len(st.parts) == 0 && len(next.parts) > 0 && s.parked[next.key] == nil && !s.closed {
			s.parked[next.key], next.since = next, time.Now()
			time.AfterFunc(successorKept, func() { s.expire(next) })
		} else {
			s.endLocked(next)
		}
	}
	s.endLocked(st)
}

// Next returns the next part, which the caller releases; nil at the end. It waits until all rows of it are in memory.
func (st *Stream) Next(ctx context.Context) (*Part, error) {
	s := st.sweep
	defer context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed.Broadcast()
	})()
	for {
		st.Extend()
		part, done, err := st.await(ctx)
		switch {
		case err != nil:
			return nil, err
		case part != nil:
			return part, part.finish()
		case done:
			return nil, nil
		}
	}
}

// await waits for a complete part, for the end, or until another part may be begun.
func (st *Stream) await(ctx context.Context) (part *Part, done bool, err error) {
	s := st.sweep
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed.Broadcast() // a worker may wait for this stream to need a part
	for {
		switch {
		case ctx.Err() != nil:
			return nil, false, ctx.Err()
		case s.closed:
			return nil, false, ErrClosed
		case len(st.parts) == 0 && st.ended:
			return nil, true, nil
		case len(st.parts) > 0 && (st.parts[0].missing == 0 || st.parts[0].err != nil):
			return st.parts[0], false, nil
		case st.mayBeginLocked():
			return nil, false, nil
		}
		st.waits = true
		s.changed.Wait()
		st.waits = false
	}
}

// completeLocked is the number of leading parts that are complete as soon as the visits in progress end, with those of the successor; the first of
// them may be in use.
func (st *Stream) completeLocked() (n int) {
	for n < len(st.parts) && st.parts[n].missing == st.parts[n].copying {
		n++
	}
	if n == len(st.parts) && st.ended && st.next != nil {
		n += st.next.completeLocked()
	}
	return n
}

// Extend begins further parts if it is time for them. Next calls it; a caller that takes long over a part calls it in between.
func (st *Stream) Extend() {
	s := st.sweep
	for {
		s.mu.Lock()
		of, may := st.filling(), st.mayBeginLocked()
		s.mu.Unlock()
		if !may {
			return
		}
		of.begin()
	}
}

// reserve reserves memory for the lists of a part. While there is none, it ends successors that wait for their streams, and then waits for others.
func (s *Sweep) reserve(n int64) error {
	for end := time.Now().Add(memoryWait); ; {
		if err := s.budget.ReserveHeap(n); err == nil || time.Now().After(end) {
			return err
		}
		s.mu.Lock()
		ended := s.endParkedLocked()
		s.mu.Unlock()
		if !ended {
			time.Sleep(memoryPoll)
		}
	}
}

// filling is the stream that parts are begun for: st or its successor; nil if both have ended.
func (st *Stream) filling() *Stream {
	if !st.ended {
		return st
	}
	if st.next != nil && !st.next.ended {
		return st.next
	}
	return nil
}

// mayBeginLocked reports whether a part may be begun. They follow each other after an equal part of a revolution, so that they are completed one
// after the other too.
func (st *Stream) mayBeginLocked() bool {
	a, s := st.account, st.sweep
	parts, bytes := s.partsLocked()
	if st.filling() == nil || len(a.parts) >= parts+2 {
		return false
	}
	for _, of := range []*Stream{st, st.next} {
		if of != nil && len(of.parts) > 0 && of.parts[len(of.parts)-1].paused {
			return false
		}
	}
	if a.incomplete == 0 {
		return len(a.parts) < 2
	}
	return a.incomplete < parts && st.paceLocked() && a.fitsLocked(bytes, s.shareLocked())
}

// heldLocked is the estimated memory of all parts of the account, with those that were released and are not free yet.
func (a *account) heldLocked() int64 { return a.used + a.lent.Load() }

// fitsLocked reports whether another part of a number of bytes fits, besides two complete ones, until each of the incomplete ones is complete: until
// then all that are younger grow as much.
func (a *account) fitsLocked(bytes, share int64) bool {
	total, growing := bytes+max(bytes, a.lent.Load()), int64(1)
	for _, p := range slices.Backward(a.parts) {
		if p.missing == 0 || p.paused {
			continue
		}
		total += p.used + p.overhead
		if growing++; total+growing*max(p.bytes-p.used, 0) > share {
			return false
		}
	}
	return true
}

// begin begins one part.
func (st *Stream) begin() {
	s := st.sweep
	s.mu.Lock()
	_, bytes := s.partsLocked()
	most := max(int(s.partRows(float64(bytes))), s.leastRows())
	s.mu.Unlock()
	runs, ends, last := st.walk(most)
	p := newPart(st, runs, ends)
	err := s.reserve(p.overhead)
	s.mu.Lock()
	defer s.mu.Unlock()
	st.ended = last
	st.begunLocked()
	if len(runs) == 0 {
		p.arena.Release()
		s.budget.ReleaseHeap(p.overhead)
		return
	}
	st.account.parts = append(st.account.parts, p)
	if p.missing > 0 {
		st.account.incomplete++
	}
	st.parts = append(st.parts, p)
	st.account.used += p.overhead
	if err != nil {
		st.account.used -= p.overhead
		p.overhead = 0
		p.failLocked(err)
		return
	}
	p.counted = true
	for i, chunk := range p.chunks {
		if !p.taken[i] {
			s.pending[chunk]++
		}
	}
	s.changed.Broadcast()
}

// resumeLocked reports whether a paused part may go on: as if it were begun now.
func (st *Stream) resumeLocked(p *Part, share int64) bool {
	if !st.account.fitsLocked(p.bytes, share) || !st.paceLocked() {
		return false
	}
	st.begunLocked()
	return true
}

// paceLocked reports whether the youngest part was begun long enough ago for another one.
func (st *Stream) paceLocked() bool {
	return st.sweep.travelled-st.account.begun >= st.sweep.stepLocked()
}

// begunLocked notes that a part is begun, maybe up to one step late.
func (st *Stream) begunLocked() {
	s, a := st.sweep, st.account
	step := s.stepLocked()
	a.begun = min(max(a.begun+step, s.travelled-step), s.travelled)
}

// stepLocked is the number of chunks after which a part follows another one.
func (s *Sweep) stepLocked() int64 {
	parts, _ := s.partsLocked()
	return max((s.unpinned()+int64(parts)-1)/int64(parts), 1)
}

// emptyLocked frees up to n bytes of parts younger than p, the youngest first. Their rows are copied again later.
func (st *Stream) emptyLocked(p *Part, n int64) {
	if st.next != nil {
		n -= st.next.emptiedLocked(nil, n)
	}
	st.emptiedLocked(p, n)
}

// emptiedLocked empties parts from the youngest up to p, without p, and returns the bytes freed. It does not pass a part to which rows are copied
// right now: to copy the rows of an older one again would cost more than to wait.
func (st *Stream) emptiedLocked(p *Part, n int64) (freed int64) {
	for i := len(st.parts) - 1; i >= 0 && st.parts[i] != p && freed < n && st.parts[i].copying == 0; i-- {
		freed += st.parts[i].emptyLocked()
	}
	return freed
}

// wantLocked appends what the stream wants of a chunk now: all for which there is room, and anyway the rows of its oldest part if the stream
// waits for that. Older parts get the room of younger ones: otherwise all of them could have some rows, and no room for the others.
func (st *Stream) wantLocked(wanted []wish, chunk int) []wish {
	share, waits := st.sweep.shareLocked(), st.open
	most := share + share/32 // parts differ
	for _, p := range st.parts {
		if p.missing == 0 || p.err != nil {
			waits = false
			continue
		}
		if p.paused && !waits && !st.resumeLocked(p, share) {
			return wanted
		}
		p.paused = false
		group := p.groupOf(chunk)
		if group >= 0 && !p.taken[group] {
			size := p.sizeOf(group)
			if over := st.account.heldLocked() + size - most; over > 0 {
				st.emptyLocked(p, over)
			}
			if waits || st.account.heldLocked()+size <= most {
				p.taken[group] = true
				p.copying++
				p.used += size
				st.account.used += size
				wanted = append(wanted, wish{p, group})
			}
		}
		waits = false
	}
	return wanted
}
