// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sweep brings rows that are not all in memory into the order of the streams that send them: it reads the chunks round and round, and
// takes from each the rows that the streams send next.
//
// A stream's sequence is cut into parts. A part is complete when each chunk with rows of it was visited once, which takes one revolution; it
// is then a [rows.Rows] of its own, in memory, whose rows are gathered in any order. Parts are begun one after the other, so that the oldest
// is complete when the youngest has hardly a row: together they span about 1.8 times the memory that they take, and the chunks are read once
// for so many rows. A visit serves all parts of all streams that want rows of the chunk.
package sweep

import (
	"errors"
	"sync"
	"time"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/rows"
)

const (
	// leastParts and mostParts bound the number of incomplete parts of a stream.
	leastParts, mostParts = 4, 64
	// A part that is not the last one has at least shortLeast rows; where rows are longer than 16 KiB, fewer, but at least longLeast.
	shortLeast, longLeast = 64, 8
	// successorKept is how long the parts of the next epoch are kept for the stream that will ask for it.
	successorKept = 2 * time.Minute
	// mostWorkers is the number of chunks that are read at a time.
	mostWorkers = 8
	// memoryWait is how long rows wait for memory that others hold before their stream fails; memoryPoll is the polling interval.
	memoryWait, memoryPoll = 15 * time.Second, 20 * time.Millisecond
)

// Walk returns the next runs of a stream, of at least the given number of rows unless the stream ends. ends are the numbers of rows, from the
// first of the runs on, after which a message must end; last says that nothing follows. runs are valid until the next call.
type Walk func(rows int) (runs []rows.Run, ends []int, last bool)

// Sweep reads the chunks of some rows for streams. Make it with New; it is safe for concurrent use. It holds no memory without streams.
type Sweep struct {
	rows    *rows.Rows
	budget  *offheap.Budget
	blocks  *offheap.Blocks
	limit   int64 // of memory
	mean    int64 // bytes of a row
	apart   bool  // of the Division: rows are read one by one
	most    int   // number of workers
	workers sync.WaitGroup

	mu        sync.Mutex
	changed   *sync.Cond
	running   int // number of workers
	streams   map[*Stream]bool
	accounts  map[*account]int   // number of streams
	parked    map[string]*Stream // successors that wait for their stream, by key
	pending   []int32            // by chunk: number of parts that want it and have not been visited
	at        int                // the next chunk
	travelled int64              // number of chunks passed, without those that stay in memory
	memory    int64              // of the parts of all streams: limit, less what they took more than estimated
	closed    bool
}

// New returns the sweep over r, whose streams' parts together take at most memory bytes of the budget. It reads as many chunks at a time as fit in
// reading bytes. apart is that of the Division of the memory. Close frees it.
func New(r *rows.Rows, budget *offheap.Budget, memory, reading int64, apart bool) *Sweep {
	most := min(max(int(reading/max(1, r.Chunks().Largest())), 1), mostWorkers)
	s := &Sweep{rows: r, apart: apart, most: most, blocks: offheap.NewBlocks(budget), budget: budget, limit: memory, memory: memory, mean: r.Bytes() / max(1, r.Len()), streams: map[*Stream]bool{}, accounts: map[*account]int{}, parked: map[string]*Stream{}, pending: make([]int32, r.Chunks().Len())}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// Memory is the maximum memory of the parts of all streams.
func (s *Sweep) Memory() int64 { return s.limit }

// ErrClosed is the error of streams after Close.
var ErrClosed = errors.New("sweep: the rows are given up")

// Close ends the workers, and the streams with ErrClosed.
func (s *Sweep) Close() {
	s.mu.Lock()
	s.closed = true
	for key, st := range s.parked {
		delete(s.parked, key)
		s.endLocked(st)
	}
	s.changed.Broadcast()
	s.mu.Unlock()
	s.workers.Wait()
	s.blocks.Close()
}

// startLocked starts the workers that are missing.
func (s *Sweep) startLocked() {
	for s.running < s.most {
		s.running++
		s.workers.Go(s.work)
	}
}

// work visits chunks until there is no stream.
func (s *Sweep) work() {
	frame, err := s.rows.NewFrame(s.budget)
	if err == nil {
		defer frame.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.running-- }()
	for err == nil && len(s.streams) > 0 && !s.closed {
		chunk, wanted := 0, []wish(nil)
		if s.hurryLocked() {
			chunk, wanted = s.nextLocked()
		}
		if len(wanted) == 0 {
			s.changed.Wait()
			continue
		}
		s.mu.Unlock()
		s.visit(frame, chunk, wanted)
		s.mu.Lock()
	}
}

// hurryLocked reports whether chunks should be visited now: a stream will soon have no complete part. If it is time for it to begin one, the next
// visits should serve that too, since otherwise each would find few rows to copy: they wait as long as the stream has rows to send.
func (s *Sweep) hurryLocked() (hurry bool) {
	for st := range s.streams {
		begins := st.mayBeginLocked()
		if st.waits && begins {
			return false
		}
		complete := st.completeLocked()
		hurry = hurry || st.open && complete < 2 && (complete == 0 || !begins)
	}
	return hurry
}

// unpinned is about how many chunks don't stay in memory.
func (s *Sweep) unpinned() int64 { return int64(s.read() * float64(s.rows.Chunks().Len())) }

// read is the part of the rows that does not stay in memory.
func (s *Sweep) read() float64 {
	return 1 - float64(s.rows.Chunks().Pinned())/float64(max(1, s.rows.Bytes()))
}

// partRows is the number of rows of a part of a number of bytes. A part has a small chunk for each chunk that has rows of it and does not stay in memory.
func (s *Sweep) partRows(bytes float64) float64 {
	read, chunks := s.read(), float64(s.rows.Chunks().Len())
	row, chunk := read*float64(s.mean)+runBytes, read*float64(s.rows.Layout().Overhead())+chunkBytes
	return max(bytes/(row+chunk), (bytes-chunks*chunk)/row)
}

// leastRows is the minimum number of rows of a part that is not the last one: about 1 MiB, within shortLeast and longLeast.
func (s *Sweep) leastRows() int { return int(min(max((1<<20)/max(s.mean, 1), longLeast), shortLeast)) }

// wish is the rows of one part in one chunk.
type wish struct {
	part  *Part
	group int
}

// nextLocked returns the next chunk of the revolution that has rows for which there is room, and what is wanted of it.
func (s *Sweep) nextLocked() (chunk int, wanted []wish) {
	passed := int64(0)
	for i := range s.pending {
		chunk = (s.at + i) % len(s.pending)
		if _, stays := s.rows.Chunks().At(chunk); !stays {
			passed++
		}
		if s.pending[chunk] == 0 {
			continue
		}
		if wanted = s.wantedLocked(chunk); len(wanted) > 0 {
			for _, w := range wanted {
				w.part.arena.Retain() // as long as rows are copied to it; the part may be dropped meanwhile
			}
			s.pending[chunk] -= int32(len(wanted))
			s.at = (chunk + 1) % len(s.pending)
			s.travelled += passed
			return chunk, wanted
		}
	}
	return 0, nil
}

// visit reads and copies what is wanted of a chunk.
func (s *Sweep) visit(frame *rows.Frame, chunk int, wanted []wish) {
	groups, cut := make([][]rows.Run32, len(wanted)), make([]*rows.Chunk, len(wanted))
	for i, w := range wanted {
		groups[i] = w.part.groups[w.part.first[w.group]:w.part.first[w.group+1]]
	}
	err := frame.Load(chunk, groups...)
	for i := 0; i < len(wanted) && err == nil; i++ {
		cut[i], err = frame.Cut(wanted[i].part.arena, groups[i])
	}
	var full *offheap.ExhaustedError
	noRoom := errors.As(err, &full)
	if noRoom {
		time.Sleep(memoryPoll)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, w := range wanted {
		switch {
		case cut[i] != nil:
			w.part.completeLocked(w.group, cut[i])
		case !noRoom || !w.part.retryLocked(w.group):
			w.part.failLocked(err)
		}
		w.part.arena.Release()
	}
	if noRoom {
		s.relieveLocked(full.Need)
	}
	s.changed.Broadcast()
}

// wantedLocked appends what streams want of a chunk.
func (s *Sweep) wantedLocked(chunk int) (wanted []wish) {
	for st := range s.streams {
		wanted = st.wantLocked(wanted, chunk)
	}
	return wanted
}

// relieveLocked frees about n bytes: of a successor that waits for its stream, else of streams that have more than their share, which becomes smaller.
func (s *Sweep) relieveLocked(n int64) {
	if s.endParkedLocked() {
		return
	}
	s.memory = max(s.memory-n, s.limit/2)
	for st := range s.streams {
		if over := st.account.heldLocked() - s.shareLocked(); over > 0 && len(st.parts) > 0 {
			st.emptyLocked(st.parts[0], min(n, over))
		}
	}
}

// endParkedLocked ends the successor that has waited for its stream the longest. It returns false if none waits.
func (s *Sweep) endParkedLocked() bool {
	oldest := (*Stream)(nil)
	for _, st := range s.parked {
		if oldest == nil || st.since.Before(oldest.since) {
			oldest = st
		}
	}
	if oldest == nil {
		return false
	}
	delete(s.parked, oldest.key)
	s.endLocked(oldest)
	return true
}

// partsLocked is the number of incomplete parts of a stream, and the bytes of each once it is complete. Incomplete parts have half of their rows on
// average, but the lists of all of them; besides there is one that is sent, one that waits, and room for differences. The more parts there are, the
// more rows they span, and the more memory their small chunks take. Where rows are read one by one, it does not matter how many they span.
func (s *Sweep) partsLocked() (parts int, bytes int64) {
	share, chunks, best := float64(s.shareLocked()), s.unpinned(), 0.0
	for n := leastParts; n <= mostParts; n *= 2 {
		half := float64(n) / 2
		lists := s.partRows(share/(half+4))*runBytes + float64(s.rows.Chunks().Len())*chunkBytes
		each := (share - half*lists) / (half + 4)
		if spanned := float64(n) * s.partRows(each); n == leastParts || spanned > best && int64(n) <= chunks && !s.apart {
			parts, bytes, best = n, int64(each), spanned
		}
	}
	return parts, bytes
}

// shareLocked is the memory of one account.
func (s *Sweep) shareLocked() int64 { return s.memory / int64(max(1, len(s.accounts))) }

// joinLocked adds a stream to an account.
func (s *Sweep) joinLocked(st *Stream, a *account) {
	st.account = a
	s.streams[st] = true
	s.accounts[a]++
}

// endLocked drops a stream with its parts.
func (s *Sweep) endLocked(st *Stream) {
	for _, p := range st.parts {
		p.dropLocked()
	}
	st.parts = nil
	if s.streams[st] {
		delete(s.streams, st)
		if s.accounts[st.account]--; s.accounts[st.account] == 0 {
			delete(s.accounts, st.account)
		}
		if len(s.streams) == 0 {
			s.memory = s.limit
		}
	}
	s.changed.Broadcast()
}

// expire ends a successor that nobody asked for.
func (s *Sweep) expire(st *Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parked[st.key] == st {
		delete(s.parked, st.key)
		s.endLocked(st)
	}
}
