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
// writers are many, each byte has left the CPU's caches before its reader gets to run. And who has one stays for many
// writes, as a reader that is woken for each of them alone finds neither its buffers in the caches nor its code. Clients
// on other machines need no place.
type places struct {
	free     chan struct{} // as many as it takes are given out
	patience time.Duration // how long one write may keep a place
	pause    time.Duration // how long it is kept between writes
}

func newPlaces(n int, patience, pause time.Duration) *places {
	return &places{make(chan struct{}, n), patience, pause}
}

// usualPlaces makes a server's places.
func usualPlaces() *places {
	return newPlaces(placesPerCPU*runtime.GOMAXPROCS(0), placePatience, placePause)
}

// place is what a connection has of the places: none, or one. Whoever has the connection's turn calls it. The zero value
// needs none.
type place struct {
	of     *places
	inside bool        // between enter and exit, with a place or with one that was lost
	held   atomic.Bool // the timer gives it back if nobody else does
	timer  *time.Timer
	wrote  int // bytes since it was taken
	// Whose reader is slow writes without a place, once, then three times, and so on: it must neither wait for the others
	// nor keep them waiting for long.
	without, penalty int
}

// enter waits for a place to write n bytes, if it takes one and has none yet. A place is lost after a moment, so the wait
// is short whatever the other clients do.
func (p *place) enter(n int) {
	if p.of == nil || n < minPlaced {
		return
	}
	if p.without > 0 {
		p.without--
		return
	}
	if !p.held.Load() || !p.timer.Stop() {
		p.giveBack() // as the timer is about to
		p.of.free <- struct{}{}
		p.held.Store(true)
		p.wrote = 0
	}
	p.inside = true
	p.wrote += n
	if p.timer == nil {
		p.timer = time.AfterFunc(p.of.patience, func() { p.giveBack() })
		return
	}
	p.timer.Reset(p.of.patience)
}

// exit ends what enter began. The place is kept for the next write, unless others have waited for long enough.
func (p *place) exit() {
	if !p.inside {
		return
	}
	p.inside = false
	if !p.held.Load() {
		p.penalty = min(2*p.penalty+1, maxPenalty)
		p.without = p.penalty
		return
	}
	p.penalty = 0
	if p.wrote >= placeStay {
		p.timer.Stop()
		p.giveBack()
		return
	}
	p.timer.Reset(p.of.pause)
}

// giveBack gives the place back, if there is one. Anyone may call it. A timer that runs late may give back the next
// write's place, which then goes on as one that was lost; none is given back twice.
func (p *place) giveBack() {
	if p.held.Swap(false) {
		<-p.of.free
	}
}

// near says whether the peer is on this machine, and in no network namespace of its own.
func near(conn net.Conn) bool {
	here, ok := conn.LocalAddr().(*net.TCPAddr)
	there, too := conn.RemoteAddr().(*net.TCPAddr)
	return ok && too && (there.IP.IsLoopback() || there.IP.Equal(here.IP))
}
