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
				p.exit()
				p.giveBack()
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
		p.exit()
		if kept := len(of.free) == 1; kept != (i%4 < 3) {
			t.Fatalf("after write %d of a quarter of the stay: kept %v", i, kept)
		}
	}

	idle := place{of: newPlaces(1, soon, time.Millisecond)}
	idle.enter(minPlaced)
	idle.exit()
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
	of := newPlaces(1, soon, soon)
	small, far := place{of: of}, place{}
	small.enter(minPlaced - 1)
	far.enter(1 << 20)
	if small.inside || far.inside || len(of.free) > 0 {
		t.Error("they took one")
	}
	small.exit()
	far.exit()
}

// TestWhoDoesNotWrite has the only place taken by a client to which nothing is written any more: another one gets all
// that it asks for.
func TestWhoDoesNotWrite(t *testing.T) {
	for _, test := range []struct {
		name, method    string
		window          uint32
		patience, pause time.Duration // the one that gives the place back in the end is short
	}{
		{"reads nothing", "Endless", maxWindow, placePatience, soon},
		{"has closed its windows", "Endless", 1 << 19, soon, soon},
		{"has all of its call", "Once", maxWindow, soon, soon},
	} {
		t.Run(test.name, func(t *testing.T) {
			var of counter
			server := serveAfter(t, Config{}, map[string]grpc.StreamHandler{"Endless": endless(&of), "Once": once(&of)}, func(s *Server) {
				s.places = newPlaces(1, test.patience, test.pause)
			})
			first := asks(t, server, test.window, test.method)
			if test.patience == soon { // else what it doesn't read holds up the write that takes the place
				reads(first, 1<<19)
			}
			reads(asks(t, server, maxWindow, "Endless"), 32<<20)
		})
	}
}

// once answers with 1 MiB.
func once(of *counter) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error { return stream.SendMsg(of.message(pattern(1 << 20))) }
}

// asks has a client open both windows to so many bytes and call.
func asks(t *testing.T, server *running, window uint32, method string) *script {
	t.Helper()
	client := server.connect(t, http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
	client.must(client.WriteWindowUpdate(0, window-defaultWindow))
	client.call(1, method, true)
	return client
}

func reads(client *script, bytes int) {
	for got := 0; got < bytes; {
		got += int(await[*http2.DataFrame](client).Length)
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
