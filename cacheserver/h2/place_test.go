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
	of := newPlaces(few, soon)
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
				p.exit()
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

// TestPlaceIsLost has one place whose owner writes for ever: others get it, and its owner writes without one from then
// on, more and more often, until it is quick again.
func TestPlaceIsLost(t *testing.T) {
	of := newPlaces(1, time.Millisecond)
	slow, quick := place{of: of}, place{of: newPlaces(1, soon)}
	for _, want := range []int{1, 3, 7, 15, 31, maxPenalty, maxPenalty} {
		slow.enter(minPlaced)
		of.free <- struct{}{} // as the next writer does: waits until the place is lost
		<-of.free
		slow.exit()
		for i := range want {
			if slow.enter(minPlaced); slow.inside {
				t.Fatalf("the slow one takes a place %d writes after it lost one, want %d without", i+1, want)
			}
			slow.exit()
		}
	}
	slow.of = quick.of // where it keeps its place
	slow.enter(minPlaced)
	slow.exit()
	for range 3 {
		slow.enter(minPlaced)
		if !slow.inside || !slow.held.Load() {
			t.Fatal("a writer that is quick again takes no place")
		}
		slow.exit()
	}
}

// TestWhoTakesNoPlace: small writes, and clients of other machines.
func TestWhoTakesNoPlace(t *testing.T) {
	of := newPlaces(1, soon)
	small, far := place{of: of}, place{}
	small.enter(minPlaced - 1)
	far.enter(1 << 20)
	if small.inside || far.inside || len(of.free) > 0 {
		t.Error("they took one")
	}
	small.exit()
	far.exit()
}

// TestReaderThatStops keeps the only place with a client that reads nothing: another one gets all that it asks for.
func TestReaderThatStops(t *testing.T) {
	var of counter
	server := serveAfter(t, Config{}, map[string]grpc.StreamHandler{"Endless": endless(&of)}, func(s *Server) {
		s.places = newPlaces(1, placePatience)
	})
	wide := http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow}
	stopped, reading := server.connect(t, wide), server.connect(t, wide)
	for _, s := range []*script{stopped, reading} {
		s.must(s.WriteWindowUpdate(0, maxWindow-defaultWindow))
		s.call(1, "Endless", true)
	}
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
