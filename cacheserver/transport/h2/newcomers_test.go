// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"crypto/tls"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"

	"github.com/kubeflow/datacache/test/kit/deadline"
)

// door is an io.Closer that records whether it was closed.
type door struct {
	net.Conn
	closed bool
}

func (d *door) Close() error {
	d.closed = true
	return nil
}

// TestOldestNewcomerGivesWay checks that all newcomers have a place until these are taken, and that then the oldest one gives way: soon if no
// newcomer makes a call, and later if many did.
func TestOldestNewcomerGivesWay(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		free   int64
		places int
	}{
		"no memory":     {0, leastPlaces},
		"some memory":   {200 * newMemory, 200},
		"enough memory": {1 << 40, mostPlaces},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := &purse{}
				p.free.Store(test.free)
				n := NewNewcomers(p, newMemory)
				var doors []*door
				enter := func(most time.Duration) (one *Newcomer) {
					t.Helper()
					began, d := time.Now(), &door{}
					doors, one = append(doors, d), n.silent(d)
					if took := time.Since(began); took > most {
						t.Fatalf("newcomer %d waited %s, want %s at most", len(doors), took, most)
					}
					return one
				}
				first := enter(0)
				for range test.places - 1 {
					enter(0)
				}
				soon := time.Duration(test.places) * time.Second / newcomersASecond
				if last := enter(soon); !doors[0].closed || doors[1].closed {
					t.Errorf("the oldest is closed: %v, the next one: %v", doors[0].closed, doors[1].closed)
				} else if first.Leave(); len(n.all) != test.places {
					t.Errorf("%d newcomers after a closed one left, want %d", len(n.all), test.places)
				} else {
					time.AfterFunc(soon/2, last.Leave)
				}
				for range test.places - 1 { // those that came first
					enter(0)
				}
				enter(soon / 2) // after another one left
				began := time.Now()
				for range 3000 {
					enter(mostPatience)
				}
				if took := time.Since(began); took > time.Second {
					t.Errorf("3000 silent ones kept their places for %s", took)
				}
				for range 100 {
					n.all[0].Call()
					enter(0)
				}
				oldest := n.all[0].since
				if enter(mostPatience); time.Since(oldest) != mostPatience {
					t.Errorf("after 100 calls, the oldest gave way after %s, want %s", time.Since(oldest), mostPatience)
				}
				began = time.Now()
				for range 3000 {
					enter(mostPatience)
				}
				if took := time.Since(began); took > mostPatience+time.Second {
					t.Errorf("after 100 calls, 3000 silent ones kept their places for %s", took)
				}
			})
		})
	}
}

// silent adds a connection that the server waits for.
func (n *Newcomers) silent(d *door) *Newcomer {
	one := n.Enter(d)
	one.reading.Store(true)
	return one
}

// TestSlowServerKeepsNewcomers checks that a connection does not give way while the server has not read its bytes yet, or does not wait for more,
// but does when it has been there for long.
func TestSlowServerKeepsNewcomers(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if _, err := client.Write([]byte("a call")); err != nil {
		t.Fatal(err)
	}
	deadline.Until(t, "the call has arrived", func() bool { return hasUnread(server) })
	n := NewNewcomers(&purse{}, newMemory)
	unread, handled, second := n.Enter(server), n.Enter(&door{}), &door{}
	unread.reading.Store(true)
	n.silent(second)
	for range leastPlaces - 2 {
		n.silent(&door{})
	}
	if !slices.Contains(n.all, unread) || !slices.Contains(n.all, handled) || !second.closed {
		t.Errorf("the unread one keeps its place: %v, the handled one: %v, the silent one after them is closed: %v",
			slices.Contains(n.all, unread), slices.Contains(n.all, handled), second.closed)
	}
	if _, err := unread.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	if n.Enter(&door{}); !slices.Contains(n.all, unread) {
		t.Error("one whose bytes are read and being handled is closed")
	}
	unread.reading.Store(true)
	if n.Enter(&door{}); slices.Contains(n.all, unread) {
		t.Error("one that is waited for, and the oldest, keeps its place")
	}
	handled.since = handled.since.Add(-HandshakeTime)
	if n.Enter(&door{}); slices.Contains(n.all, handled) {
		t.Error("one that has been handled for the time of a handshake keeps its place")
	}
}

// TestMemoryOfANewcomer checks that a connection takes little memory until its first call, and then that of one that stays.
func TestMemoryOfANewcomer(t *testing.T) {
	t.Parallel()
	const memory = 1 << 20
	p := &purse{}
	p.free.Store(memory)
	r := serve(t, Config{Memory: p}, map[string]grpc.StreamHandler{"Hold": hold})
	s := r.connect(t)
	if used := memory - p.free.Load(); used != newMemory {
		t.Errorf("a newcomer takes %d bytes, want %d", used, newMemory)
	}
	s.call(1, "Hold", false)
	deadline.Until(t, "the call is running", func() bool { return r.conn() != nil })
	r.conn().runs(t, 1)
	if used := memory - p.free.Load(); used < connMemory || used > connMemory+callMemory {
		t.Errorf("a connection with a call takes %d bytes, want %d and its header fields", used, connMemory)
	}
}

// silent opens a connection that makes no call: it sends nothing, a part of the first message of TLS or HTTP/2, or all of that message.
func (r *running) silent(t *testing.T, config *tls.Config, kind int) {
	t.Helper()
	conn := r.plain(t)
	first := []byte(http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00") // and empty SETTINGS
	if config != nil {
		first = hello(t, config)
	}
	if _, err := conn.Write(first[:kind*len(first)/2]); err != nil {
		t.Fatal(err)
	}
}

// hello returns the first message of a TLS client.
func hello(t *testing.T, config *tls.Config) []byte {
	t.Helper()
	near, far := net.Pipe()
	defer func() { _ = far.Close() }()
	config = config.Clone()
	config.ServerName = "127.0.0.1"
	go func() { _ = tls.Client(near, config).HandshakeContext(t.Context()) }() // ends when the pipe is closed
	message := make([]byte, recordBytes)
	n, err := far.Read(message)
	if err != nil {
		t.Fatal(err)
	}
	return message[:n]
}

// TestSilentConnectionsKeepNobodyOut has thousands of connections that make no call, and that nobody closes, at a server with the memory for few: a
// call on another connection must succeed.
func TestSilentConnectionsKeepNobodyOut(t *testing.T) {
	t.Parallel()
	const number, memory = 3000, 14 << 20 // for 56 connections over TLS
	serverTLS, clientTLS := selfSigned(t)
	for name, config := range map[string]*tls.Config{"plain text": nil, "TLS": clientTLS} {
		t.Run(name, func(t *testing.T) {
			p := &purse{}
			p.free.Store(memory)
			cfg := Config{Memory: p}
			if config != nil {
				cfg.TLS = serverTLS
			}
			r := serveAfter(t, cfg, nil, func(s *Server) { s.handshake = time.Hour })
			for i := range number {
				r.silent(t, config, i%3)
			}
			began, request, reply := time.Now(), raw("hello"), raw{}
			if err := r.dial(t, config).Invoke(deadline.Context(t), "/t/Echo", &request, &reply, grpc.WaitForReady(true)); err != nil || string(reply) != "hello" {
				t.Fatalf("%q, %v", reply, err)
			}
			t.Logf("the call took %s", time.Since(began))
			r.Stop()
			deadline.Until(t, "all memory is released", func() bool { return p.free.Load() == memory })
		})
	}
}
