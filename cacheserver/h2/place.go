// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"net"
	"runtime"
	"sync/atomic"
	"time"
)

// places are the rights to write much at a time to clients on this machine. There are a few for each CPU: when the
// writers are many, each byte has left the CPU's caches before its reader gets to run, and the readers run in turns so
// short that every one finds its caches cold. Clients on other machines need no place.
type places struct {
	free     chan struct{} // as many as it takes are given out
	patience time.Duration
}

func newPlaces(n int, patience time.Duration) *places {
	return &places{make(chan struct{}, n), patience}
}

// usualPlaces makes a server's places.
func usualPlaces() *places { return newPlaces(placesPerCPU*runtime.GOMAXPROCS(0), placePatience) }

// place is what a connection has of the places: none, or one while it writes. Whoever has the connection's turn calls
// it. The zero value needs none.
type place struct {
	of     *places
	inside bool        // between enter and exit, with a place or with one that was lost
	held   atomic.Bool // it is given back by exit, or by the timer
	timer  *time.Timer
	// Whose reader is slow writes without a place, once, then three times, and so on: it must neither wait for the others
	// nor keep them waiting for long.
	without, penalty int
}

// enter waits for a place to write n bytes, if it takes one. A place is lost after a moment, so the wait is short
// whatever the other clients do.
func (p *place) enter(n int) {
	if p.of == nil || n < minPlaced {
		return
	}
	if p.without > 0 {
		p.without--
		return
	}
	p.of.free <- struct{}{}
	p.inside = true
	p.held.Store(true)
	if p.timer == nil {
		p.timer = time.AfterFunc(p.of.patience, func() { p.giveBack() })
		return
	}
	p.timer.Reset(p.of.patience)
}

// exit ends what enter began.
func (p *place) exit() {
	if !p.inside {
		return
	}
	p.inside = false
	p.timer.Stop()
	if p.giveBack() {
		p.penalty = 0
		return
	}
	p.penalty = min(2*p.penalty+1, maxPenalty)
	p.without = p.penalty
}

// giveBack says whether there was a place to give. A timer that runs late may give back the next write's place, which
// then goes on as one that was lost; none is given back twice.
func (p *place) giveBack() bool {
	held := p.held.Swap(false)
	if held {
		<-p.of.free
	}
	return held
}

// near says whether the peer is on this machine, and in no network namespace of its own.
func near(conn net.Conn) bool {
	here, ok := conn.LocalAddr().(*net.TCPAddr)
	there, too := conn.RemoteAddr().(*net.TCPAddr)
	return ok && too && (there.IP.IsLoopback() || there.IP.Equal(here.IP))
}
