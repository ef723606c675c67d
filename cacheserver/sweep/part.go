// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"slices"
	"time"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/rows"
)

const (
	// runBytes is the memory in the Go heap for each run of a part, and chunkBytes for each chunk.
	runBytes, chunkBytes = 8 + 16, 256
)

// Part is consecutive rows of a stream. The caller of Stream.Next releases it.
type Part struct {
	Rows *rows.Rows // rows of the part by chunk, and all rows of the chunks that stay in memory
	Runs []rows.Run // the stream's sequence: rows of Rows
	Ends []int      // see Walk

	stream   *Stream
	arena    *offheap.Arena
	chunks   []int32      // numbers of the chunks that have rows of the part, ascending
	first    []int32      // the runs of chunks[i] are groups[first[i]:first[i+1]]
	groups   []rows.Run32 // runs within each chunk, in the order of chunks
	bytes    int64        // estimate of the bytes in arena once it is complete
	overhead int64        // bytes reserved for this struct's slices, which are in the Go heap

	// cut is set by the worker that takes a group. The others are protected by Sweep.mu.
	cut     []*rows.Chunk // by index in chunks
	taken   []bool        // by index in chunks: cut, or being cut
	copying int           // number of groups that are being cut
	missing int           // number of groups that are not cut
	used    int64         // estimate of the bytes in arena
	waits   time.Time     // since when it waits for memory; zero: it does not wait
	paused  bool          // its rows were dropped, and are copied again when there is room for the part
	counted bool          // the groups that are not taken are in Sweep.pending
	dropped bool
	err     error
}

// piece is a run within one chunk.
type piece struct {
	chunk int32
	run   rows.Run32
}

// newPart makes an empty part of runs of the sweep's rows.
func newPart(st *Stream, runs []rows.Run, ends []int) *Part {
	s := st.sweep
	p := &Part{Ends: ends, stream: st}
	pieces, count := st.list[:0], make([]int32, s.rows.Chunks().Len()+1)
	for _, q := range runs {
		for row, end := int64(q.First), int64(q.First+q.Rows); row < end; {
			chunk, lo, hi := s.rows.Chunks().Find(row)
			n := min(end, hi) - row
			pieces = append(pieces, piece{int32(chunk), rows.Run32{First: uint32(row - lo), Rows: uint32(n)}})
			count[chunk]++
			row += n
		}
	}
	st.list = pieces
	p.group(pieces, count)
	for i := range p.chunks {
		if !p.taken[i] {
			p.bytes += p.sizeOf(i)
		}
	}
	p.arena = s.blocks.NewArena(p.bytes)
	p.overhead = runBytes*int64(len(pieces)) + chunkBytes*int64(len(p.chunks))
	return p
}

// group sorts pieces by chunk, and sets the runs of the sequence. count is, by chunk, the number of its pieces.
func (p *Part) group(pieces []piece, count []int32) {
	s := p.stream.sweep
	at, next := count, int32(0)                   // by chunk: where its next piece goes
	rest := make([]uint64, s.rows.Chunks().Len()) // by chunk: number of its rows in Rows
	whole := make([]bool, len(rest))              // by chunk: it stays in memory
	for chunk, n := range count {
		if at[chunk] = next; n == 0 {
			continue
		}
		c, stays := s.rows.Chunks().At(chunk)
		p.chunks, p.first, p.cut, p.taken = append(p.chunks, int32(chunk)), append(p.first, next), append(p.cut, nil), append(p.taken, stays)
		if last := len(p.chunks) - 1; stays {
			p.cut[last], rest[chunk], whole[chunk] = c, uint64(c.Rows()), true
		} else {
			p.missing++
		}
		next += n
	}
	p.first = append(p.first, next)
	for _, q := range pieces {
		if !whole[q.chunk] {
			rest[q.chunk] += uint64(q.run.Rows)
		}
	}
	start := make([]uint64, len(rest)) // by chunk: the row in Rows of its next piece
	for row, i := uint64(0), 0; i < len(rest); i++ {
		start[i], row = row, row+rest[i]
	}
	p.groups, p.Runs = make([]rows.Run32, len(pieces)), make([]rows.Run, len(pieces))
	for i, q := range pieces {
		p.groups[at[q.chunk]] = q.run
		at[q.chunk]++
		p.Runs[i] = rows.Run{First: start[q.chunk], Rows: uint64(q.run.Rows)}
		if whole[q.chunk] {
			p.Runs[i].First += uint64(q.run.First)
		} else {
			start[q.chunk] += uint64(q.run.Rows)
		}
	}
}

// groupOf is the index of a chunk in chunks; negative if the part has no rows of it.
func (p *Part) groupOf(chunk int) int {
	if i, ok := slices.BinarySearch(p.chunks, int32(chunk)); ok {
		return i
	}
	return -1
}

// sizeOf estimates the bytes of a group.
func (p *Part) sizeOf(group int) (bytes int64) {
	s := p.stream.sweep
	for _, q := range p.groups[p.first[group]:p.first[group+1]] {
		bytes += int64(q.Rows) * s.mean
	}
	return bytes + s.rows.Layout().Overhead()
}

// emptyLocked drops the rows of an incomplete part, which is then as if it had not been begun. It returns about how many bytes that frees.
func (p *Part) emptyLocked() int64 {
	if p.used == 0 || p.missing == 0 || p.copying > 0 || p.err != nil || p.dropped {
		return 0
	}
	s, freed := p.stream.sweep, p.used
	for i, chunk := range p.chunks {
		if p.taken[i] && p.isCut(i) {
			p.taken[i], p.cut[i] = false, nil
			p.missing++
			s.pending[chunk]++
		}
	}
	p.used, p.paused = 0, true
	p.stream.account.used -= freed
	p.arena.Release()
	p.arena = s.blocks.NewArena(p.bytes)
	return freed
}

// isCut reports whether a group that was taken is a copy, not a chunk that stays in memory.
func (p *Part) isCut(group int) bool {
	c, _ := p.stream.sweep.rows.Chunks().At(int(p.chunks[group]))
	return p.cut[group] != c
}

// completeLocked notes that a group was cut.
func (p *Part) completeLocked(group int, cut *rows.Chunk) {
	p.copying--
	p.cut[group], p.waits = cut, time.Time{}
	if p.missing--; p.missing == 0 && p.err == nil && !p.dropped {
		p.stream.account.incomplete--
	}
}

// retryLocked makes a group wanted again for which there was no memory. After some time it returns false.
func (p *Part) retryLocked(group int) bool {
	p.copying--
	if p.dropped || p.err != nil {
		return true
	}
	if p.waits.IsZero() {
		p.waits = time.Now()
	}
	if time.Since(p.waits) > memoryWait {
		return false
	}
	size := p.sizeOf(group)
	p.used -= size
	p.stream.account.used -= size
	p.taken[group] = false
	p.stream.sweep.pending[p.chunks[group]]++
	return true
}

// failLocked ends the part; Next returns the error.
func (p *Part) failLocked(err error) {
	if p.err == nil && !p.dropped && p.missing > 0 {
		p.stream.account.incomplete--
	}
	p.err = err
}

// finish makes the rows of a complete part.
func (p *Part) finish() (err error) {
	s := p.stream.sweep
	if p.err == nil && p.Rows == nil {
		if p.Rows, p.err = rows.NewRows(s.rows.Layout(), p.cut); p.err == nil {
			lent := &p.stream.account.lent
			p.Rows.Finally(func() { lent.Add(-p.used) })
		}
		p.cut, p.groups = nil, nil
	}
	return p.err
}

// Release frees the part, as soon as messages of its rows are released.
func (p *Part) Release() {
	s := p.stream.sweep
	s.mu.Lock()
	defer s.mu.Unlock()
	p.stream.parts = slices.DeleteFunc(p.stream.parts, func(o *Part) bool { return o == p })
	p.dropLocked()
	s.changed.Broadcast()
}

func (p *Part) dropLocked() {
	s, a := p.stream.sweep, p.stream.account
	if p.dropped {
		return
	}
	for i, chunk := range p.chunks {
		if !p.taken[i] && p.counted {
			s.pending[chunk]--
		}
	}
	if p.missing > 0 && p.err == nil {
		a.incomplete--
	}
	p.dropped = true
	a.parts = slices.DeleteFunc(a.parts, func(o *Part) bool { return o == p })
	a.used -= p.used + p.overhead
	s.budget.ReleaseHeap(p.overhead)
	if p.Rows != nil {
		a.lent.Add(p.used)
		p.Rows.Release()
	}
	p.arena.Release()
}
