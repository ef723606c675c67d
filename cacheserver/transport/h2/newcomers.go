// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// leastPlaces and mostPlaces bound the number of newcomers; between them it is as many as have the memory that they leave to others.
	leastPlaces, mostPlaces = 64, 4096
	// newcomersASecond is how many connections a second can come in although no newcomer makes a call.
	newcomersASecond = 4000
	// mostPatience is the maximum time for which a newcomer keeps its place when all are taken.
	mostPatience = 2 * time.Second
	// behind is how long the server gives itself to read what all newcomers have sent.
	behind = 10 * time.Millisecond
)

// Newcomers are the connections of a server that have not made a call yet: silent ones, and those in a handshake. Their number is bounded. When
// all places are taken, the next connection gets that of the oldest newcomer, which is closed, so that whoever keeps connections without a call
// keeps nobody out. A newcomer keeps its place, for HandshakeTime at most, while the server has not yet read or handled what it has sent.
// Make it with NewNewcomers; it is safe for concurrent use.
type Newcomers struct {
	memory Memory
	each   int64
	left   chan struct{} // has a value after one has left

	mu  sync.Mutex
	all []*Newcomer // oldest first
	// patience is how long the oldest keeps its place. It gets longer with each newcomer that makes a call, and shorter with each that is closed
	// without one: a crowd of slow clients is let in, and connections that are silent on purpose go soon.
	patience time.Duration
}

// Newcomer is a connection that has not made a call yet. All reads from the connection must be made through it.
type Newcomer struct {
	net.Conn
	among   *Newcomers
	since   time.Time
	reading atomic.Bool // a Read is waiting for bytes of the client
}

// Read implements net.Conn.
func (o *Newcomer) Read(p []byte) (int, error) {
	o.reading.Store(true)
	defer o.reading.Store(false)
	return o.Conn.Read(p)
}

// mayGiveWay reports whether another connection may get the place: the server waits for the client, or HandshakeTime has passed.
func (o *Newcomer) mayGiveWay(now time.Time) bool {
	return o.reading.Load() && !hasUnread(o.Conn) || now.Sub(o.since) > HandshakeTime
}

// NewNewcomers returns no newcomers. Each of them takes so many bytes of a memory, which its caller reserves.
func NewNewcomers(memory Memory, each int64) *Newcomers {
	return &Newcomers{memory: memory, each: each, left: make(chan struct{}, 1)}
}

// Enter adds a connection once there is a place for it.
func (n *Newcomers) Enter(conn net.Conn) *Newcomer {
	one := &Newcomer{Conn: conn, among: n}
	for {
		oldest, wait := n.add(one, time.Now())
		if oldest != nil {
			_ = oldest.Close()
		}
		if wait <= 0 {
			return one
		}
		select {
		case <-n.left:
		case <-time.After(wait):
		}
	}
}

// add adds a connection in a free place, or in that of the oldest one, which is to be closed. If this one may keep its place, add returns how long.
func (n *Newcomers) add(one *Newcomer, now time.Time) (oldest *Newcomer, wait time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if places := min(max(n.memory.Free()/n.each, leastPlaces), mostPlaces); int64(len(n.all)) >= places {
		i := slices.IndexFunc(n.all, func(one *Newcomer) bool { return one.mayGiveWay(now) })
		if i < 0 { // the server has to read and handle bytes of all of them first
			return nil, behind
		}
		oldest = n.all[i]
		n.patience = max(n.patience, time.Duration(len(n.all))*time.Second/newcomersASecond)
		if wait = oldest.since.Add(n.patience).Sub(now); wait > 0 {
			return nil, wait
		}
		n.patience = n.patience * 9 / 10
		n.all = slices.Delete(n.all, i, i+1)
	}
	one.since = now
	n.all = append(n.all, one)
	return oldest, 0
}

// Call gives the place back, since the connection makes a call.
func (o *Newcomer) Call() {
	n := o.among
	n.mu.Lock()
	n.patience = min(max(n.patience, time.Millisecond)*10/9, mostPatience)
	n.mu.Unlock()
	o.Leave()
}

// Leave gives the place back, if the connection still has it.
func (o *Newcomer) Leave() {
	n := o.among
	n.mu.Lock()
	defer n.mu.Unlock()
	i := slices.Index(n.all, o)
	if i < 0 {
		return
	}
	n.all = slices.Delete(n.all, i, i+1)
	select {
	case n.left <- struct{}{}:
	default:
	}
}
