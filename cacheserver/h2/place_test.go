// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
)

// TestPlaces has many writers and few places that nobody loses: never more than those are inside.
func TestPlaces(t *testing.T) {
	const few, writers, rounds = 3, 20, 200
	of := newPlaces(few, soon, soon)
	var inside, most atomic.Int64
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			p := place{of: of}
			for range rounds {
				p.enter(minPlaced)
				now := inside.Add(1)
				for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
				}
				runtime.Gosched() // to the others, who must not come in
				inside.Add(-1)
				p.exit(true)
			}
		})
	}
	all.Wait()
	if got := most.Load(); got < 1 || got > few {
		t.Errorf("%d writers at a time, want %d at most", got, few)
	}
	if left := len(of.free); left != 0 {
		t.Errorf("%d places were not given back", left)
	}
}

// TestPlaceIsKept has one place, which its owner keeps from write to write until it has written its stay, or has
// nothing to write for a while.
func TestPlaceIsKept(t *testing.T) {
	of := newPlaces(1, soon, soon)
	p := place{of: of}
	const piece = placeStay / 4
	for i := range 8 {
		p.enter(piece)
		if !p.inside || !p.held.Load() {
			t.Fatalf("write %d was without the place", i)
		}
		p.exit(false)
		if kept := len(of.free) == 1; kept != (i%4 < 3) {
			t.Fatalf("after write %d of a quarter of the stay: kept %v", i, kept)
		}
	}

	idle := place{of: newPlaces(1, soon, time.Millisecond)}
	idle.enter(minPlaced)
	idle.exit(false)
	idle.of.free <- struct{}{} // as the next writer does: waits until the place is given back
	<-idle.of.free
	if idle.enter(minPlaced); !idle.inside || !idle.held.Load() || idle.wrote != minPlaced {
		t.Error("to write nothing for a while was counted as to be slow")
	}
}

// TestPlaceIsLost has one place whose owner writes for ever: others get it, and its owner writes without one from then
// on, more and more often, until it is quick again.
func TestPlaceIsLost(t *testing.T) {
	of := newPlaces(1, time.Millisecond, soon)
	slow, quick := place{of: of}, place{of: newPlaces(1, soon, soon)}
	for _, want := range []int{1, 3, 7, 15, 31, maxPenalty, maxPenalty} {
		slow.enter(minPlaced)
		of.free <- struct{}{} // as the next writer does: waits until the place is lost
		<-of.free
		slow.exit(false)
		for i := range want {
			if slow.enter(minPlaced); slow.inside {
				t.Fatalf("the slow one takes a place %d writes after it lost one, want %d without", i+1, want)
			}
			slow.exit(false)
		}
	}
	slow.of = quick.of // where it keeps its place
	slow.enter(minPlaced)
	slow.exit(false)
	for range 3 {
		slow.enter(minPlaced)
		if !slow.inside || !slow.held.Load() {
			t.Fatal("a writer that is quick again takes no place")
		}
		slow.exit(false)
	}
}

// TestWhoTakesNoPlace: small writes, and clients of other machines.
func TestWhoTakesNoPlace(t *testing.T) {
	of := newPlaces(1, soon, soon)
	small, far := place{of: of}, place{}
	small.enter(minPlaced - 1)
	far.enter(1 << 20)
	if small.inside || far.inside || len(of.free) > 0 {
		t.Error("they took one")
	}
	small.exit(false)
	far.exit(false)
}

// TestReaderThatStops has the only place taken by a client that reads nothing: another one gets all that it asks for.
func TestReaderThatStops(t *testing.T) {
	server := serveOnePlace(t, newPlaces(1, placePatience, soon))
	server.call(t, maxWindow)
	server.readsOn(t)
}

// TestWindowsThatClose has the only place taken by a client whose windows let half a MiB through and no more: another
// one gets all that it asks for, without waiting until the first one has lost the place.
func TestWindowsThatClose(t *testing.T) {
	server := serveOnePlace(t, newPlaces(1, soon, soon))
	closed := server.call(t, 512<<10)
	for got := 0; got < 512<<10; {
		got += int(await[*http2.DataFrame](closed).Length)
	}
	server.readsOn(t)
}

// onePlace is a server with one place that answers without end.
type onePlace struct{ *running }

func serveOnePlace(t *testing.T, one *places) onePlace {
	t.Helper()
	var of counter
	return onePlace{serveAfter(t, Config{}, map[string]grpc.StreamHandler{"Endless": endless(&of)}, func(s *Server) {
		s.places = one
	})}
}

// call opens both windows to so many bytes and calls.
func (s onePlace) call(t *testing.T, window uint32) *script {
	t.Helper()
	client := s.connect(t, http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
	if window > defaultWindow {
		client.must(client.WriteWindowUpdate(0, window-defaultWindow))
	}
	client.call(1, "Endless", true)
	return client
}

// readsOn has a client of its own read 32 MiB.
func (s onePlace) readsOn(t *testing.T) {
	t.Helper()
	reading := s.call(t, maxWindow)
	for got := 0; got < 32<<20; {
		got += int(await[*http2.DataFrame](reading).Length)
	}
}

func TestNear(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		here, there string
		want        bool
	}{
		{"127.0.0.1", "127.0.0.1", true},
		{"127.0.0.5", "127.0.0.1", true},
		{"::1", "::1", true},
		{"10.1.2.3", "10.1.2.3", true},
		{"::ffff:10.1.2.3", "10.1.2.3", true},
		{"10.1.2.3", "10.1.2.4", false},
		{"2001:db8::1", "2001:db8::2", false},
	} {
		if got := near(between{here: test.here, there: test.there}); got != test.want {
			t.Errorf("%s to %s: %v, want %v", test.here, test.there, got, test.want)
		}
	}
}

// between is a connection that has no more than its addresses.
type between struct {
	net.Conn
	here, there string
}

func (b between) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.ParseIP(b.here)} }
func (b between) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(b.there)} }
