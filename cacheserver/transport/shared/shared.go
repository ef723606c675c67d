// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package shared is memory that a server and a client of the same machine and user map: the server writes messages to its slots, and the
// client gives the slots back. See docs/adr/0051-rows-in-shared-memory.md.
package shared

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubeflow/datacache/cacheserver/offheap"
)

const (
	// leastSlots and mostSlots bound the number of slots of a memory, and leastSlot and mostSlot the bytes of each.
	leastSlots, mostSlots = 4, 256
	leastSlot, mostSlot   = 64 << 10, 64 << 20
	// fraction is the divisor of the free memory of clients that bounds a memory.
	fraction = 16
)

// Server makes memories for clients that connect to its Unix socket. Make it with New; it is safe for concurrent use.
type Server struct {
	clients offheap.Clients
	log     *slog.Logger

	mu       sync.Mutex
	memories map[string]*Memory // by token
}

// New returns a server. The bytes of memories are reserved in the memory for clients. Memories that no call uses are taken back when others need
// their bytes, the one that was used longest ago first.
func New(clients offheap.Clients, log *slog.Logger) *Server {
	s := &Server{clients: clients, log: log, memories: map[string]*Memory{}}
	clients.OnShortage(s.takeBack)
	return s
}

// takeBack takes memories back that no call uses, until n bytes are free or there are no more.
func (s *Server) takeBack(n int64) (freed int64) {
	s.mu.Lock()
	idle := slices.SortedFunc(maps.Values(s.memories), func(a, b *Memory) int { return cmp.Compare(a.quiet.Load(), b.quiet.Load()) })
	s.mu.Unlock()
	for _, m := range idle {
		if freed >= n {
			break
		}
		freed += m.takeBack()
	}
	return freed
}

// Use returns the memory that a client has named in a call, which must call Done. It returns nil if there is none, or another call uses it.
func (s *Server) Use(token string) *Memory {
	s.mu.Lock()
	m := s.memories[token]
	s.mu.Unlock()
	if m == nil || !m.use() {
		return nil
	}
	return m
}

// add registers a memory until its client is gone.
func (s *Server) add(token string, m *Memory) (remove func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memories[token] = m
	m.quiet.Store(time.Now().UnixNano())
	s.clients.Evictable(m.size())
	return func() {
		s.mu.Lock()
		delete(s.memories, token)
		s.mu.Unlock()
		m.leave()
	}
}

// reserve returns an allowance for slots of some bytes: as many as the client asks for, or fewer where memory is scarce. Without room for
// leastSlots it returns nil.
func (s *Server) reserve(slots, bytes int) (*offheap.Allowance, int) {
	slots = min(slots, mostSlots, int(s.clients.Free()/fraction)/bytes)
	if slots < leastSlots {
		return nil, 0
	}
	allowance, err := s.clients.Allow(int64(slots) * int64(bytes))
	if err != nil {
		return nil, 0
	}
	return allowance, slots
}

// Memory is the memory of one client. It is safe for concurrent use.
type Memory struct {
	slot      int // bytes of each
	clients   offheap.Clients
	allowance *offheap.Allowance
	system    system
	returned  chan struct{} // has a value after slots came back
	gone      chan struct{} // closed when the client is gone
	quiet     atomic.Int64  // when it was made, or the last call ended to use it, in Unix nanoseconds

	mu     sync.Mutex
	mapped []byte
	free   []int  // the one that came back last is at the end: it may still be in a cache of the processor
	lent   []bool // by slot: the server writes it, or the client has it
	ready  []bool // by slot: its pages are mapped
	used   bool   // by a call
	left   bool   // the client is gone, or the memory was taken back
}

// system is what a memory does by the operating system.
type system struct {
	unmap   func([]byte)
	discard func([]byte) // frees pages of the memory, for the client too
	hangUp  func()       // ends the connection to the client
}

func newMemory(mapped []byte, slots int, clients offheap.Clients, allowance *offheap.Allowance, system system) *Memory {
	m := &Memory{
		slot: len(mapped) / slots, clients: clients, allowance: allowance, system: system, returned: make(chan struct{}, 1), gone: make(chan struct{}),
		mapped: mapped, lent: make([]bool, slots), ready: make([]bool, slots),
	}
	for i := range slots {
		m.free = append(m.free, slots-1-i)
	}
	return m
}

// Slot is a part of a memory for one message.
type Slot struct {
	Number int
	Bytes  []byte
}

// Take returns a free slot; it waits until there is one. It returns nil if the client is gone or ctx ends.
func (m *Memory) Take(ctx context.Context) *Slot {
	for {
		m.mu.Lock()
		if last := len(m.free) - 1; last >= 0 && !m.left {
			n := m.free[last]
			m.free, m.lent[n] = m.free[:last], true
			ready := m.ready[n]
			m.ready[n] = true
			m.mu.Unlock()
			slot := &Slot{Number: n, Bytes: m.mapped[n*m.slot : (n+1)*m.slot : (n+1)*m.slot]}
			if !ready {
				offheap.Populate(slot.Bytes)
			}
			return slot
		}
		m.mu.Unlock()
		select {
		case <-m.returned:
		case <-m.gone:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// Return takes a slot back. It reports whether that slot was lent.
func (m *Memory) Return(number uint32) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if uint64(number) >= uint64(len(m.lent)) || !m.lent[number] {
		return false
	}
	m.lent[number] = false
	m.free = append(m.free, int(number))
	select {
	case m.returned <- struct{}{}:
	default:
	}
	return true
}

// use reserves the memory for one call.
func (m *Memory) use() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.used || m.left {
		return false
	}
	m.used = true
	m.clients.Evictable(-m.size())
	return true
}

// size is the number of bytes of all slots.
func (m *Memory) size() int64 { return int64(m.slot) * int64(len(m.lent)) }

// Done ends the use by a call, whose slots must not be written any more.
func (m *Memory) Done() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used = false
	m.quiet.Store(time.Now().UnixNano())
	m.clients.Evictable(m.size())
	if m.left {
		m.closeLocked()
	}
}

// leave says that the client is gone.
func (m *Memory) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left {
		return
	}
	m.left = true
	close(m.gone)
	if !m.used {
		m.closeLocked()
	}
}

// takeBack ends the memory if no call uses it, and returns how many bytes it has released. Slots that the client has not given back stay as they are;
// the client finds that the connection has ended, and asks for another memory when it needs one.
func (m *Memory) takeBack() (freed int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.used || m.left {
		return 0
	}
	for _, n := range m.free {
		if m.ready[n] {
			m.system.discard(m.mapped[n*m.slot : (n+1)*m.slot])
		}
	}
	m.left = true
	close(m.gone)
	m.system.hangUp()
	m.closeLocked()
	return m.size()
}

// closeLocked releases a memory that no call uses.
func (m *Memory) closeLocked() {
	m.system.unmap(m.mapped)
	m.mapped = nil
	m.clients.Evictable(-m.size())
	m.allowance.Close()
}
