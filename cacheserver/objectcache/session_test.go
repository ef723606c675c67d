// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/kubeflow/datacache/cacheserver/objectcache/buckets"
	"github.com/kubeflow/datacache/cacheserver/objectcache/router"
	"github.com/kubeflow/datacache/cacheserver/objectcache/store"
)

// TestConnectionsGoBackAndForth looks at who has a connection.
func TestConnectionsGoBackAndForth(t *testing.T) {
	t.Parallel()
	p := takeApart(t, start(t, "alone").Server, usual.header)
	d := p.direct
	conn := dial(t, p.address)
	answers := bufio.NewReader(conn)
	steps := []struct {
		name, text string
		status     int
		sessions   int // afterwards
	}{
		{"a miss", "GET /v1/objects/open/x HTTP/1.1\r\nHost: cache\r\n" + asA + "\r\n\r\n", 404, 0},
		{"a write", "PUT /v1/objects/open/x HTTP/1.1\r\nHost: cache\r\n" + asA + "\r\nContent-Length: 4\r\n\r\nbody", 201, 0},
		{"a hit", plainGet + asA + "\r\n\r\n", 200, 1},
		{"another hit", plainGet + asA + "\r\n\r\n", 200, 1},
		{"a part", plainGet + asA + "\r\nRange: bytes=1-2\r\n\r\n", 206, 1},
		{"a part that is not", plainGet + asA + "\r\nRange: bytes=4-\r\n\r\n", 416, 0},
		{"a hit after a refusal", plainGet + asA + "\r\n\r\n", 200, 1},
		{"a refusal", plainGet + "\r\n", 401, 0},
		{"a head", "HEAD" + plainGet[3:] + asA + "\r\n\r\n", 200, 1},
	}
	for _, step := range steps {
		if _, err := io.WriteString(conn, step.text); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(answers, &http.Request{Method: step.text[:bytes.IndexByte([]byte(step.text), ' ')]})
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != step.status {
			t.Errorf("%s: %d %v, want %d", step.name, response.StatusCode, err, step.status)
		}
		d.awaits(t, step.name, step.sessions)
	}
	conn.Close()
	d.awaits(t, "the client has left", 0)
}

// parts is a server of which a test sees the parts.
type parts struct {
	address string
	direct  *direct
	servers []*http.Server // for new connections, and for those that go back
	taken   chan net.Conn  // a new one
}

// takeApart runs a server until the test ends. For a connection that goes back to net/http, that waits for a header for again.
func takeApart(t *testing.T, s *Server, again time.Duration) *parts {
	t.Helper()
	listener := listen(t)
	p := &parts{address: listener.Addr().String(), direct: newDirect(s, listener.Addr()), taken: make(chan net.Conn, 1)}
	fresh, back := s.newHTTP(p.direct), s.newHTTP(p.direct)
	fresh.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateNew {
			p.taken <- conn
		}
	}
	back.ReadHeaderTimeout = again
	p.servers = []*http.Server{fresh, back}
	for i, from := range []net.Listener{listener, p.direct.back} {
		go func() { _ = p.servers[i].Serve(from) }()
		t.Cleanup(func() { _ = p.servers[i].Close() })
	}
	return p
}

// awaits waits until direct has so many connections.
func (d *direct) awaits(t *testing.T, after string, want int) {
	t.Helper()
	has := func() int {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.sessions)
	}
	for deadline := time.Now().Add(patienceOfTests); has() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: direct has %d connections, want %d", after, has(), want)
		}
	}
}

// ending is a server that has one object, which fits into no socket, and that a test ends.
type ending struct {
	address string
	size    int
	end     func()
	ended   chan error
}

func startEnding(t *testing.T, grace time.Duration) *ending {
	t.Helper()
	s, _ := withLarge(t, grace)
	listener := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	e := &ending{address: listener.Addr().String(), size: large, end: cancel, ended: make(chan error, 1)}
	go func() { e.ended <- s.Serve(ctx, listener) }()
	return e
}

// large is the size of an object that fits into no socket.
const large = 64 << 20

// withLarge makes a server, which is open, of a bucket "open" with a large object "x", and tells where its store is.
func withLarge(t *testing.T, grace time.Duration) (s *Server, dir string) {
	t.Helper()
	dir = t.TempDir()
	open := buckets.Config{TotalLimit: 1 << 30, Buckets: map[string]buckets.Bucket{"open": {Name: "open", Public: true, Quota: 1 << 30}}}
	objects, err := store.Open(store.Config{Dir: dir, Limits: store.Limits{Total: 1 << 30, Quotas: map[string]int64{"open": 1 << 30}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = objects.Close() })
	w, err := objects.Create("open", "x", large)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, large)); err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	s = New(Config{
		Store: objects, Router: router.New("alone"), Reviewer: &names{}, Grace: grace, Log: slog.New(slog.DiscardHandler),
		Buckets: func() buckets.Config { return open }, BucketsRejected: func() bool { return false },
	})
	s.Open()
	return s, dir
}

// has waits until the server has ended.
func (e *ending) has(t *testing.T) {
	t.Helper()
	select {
	case err := <-e.ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patienceOfTests):
		t.Fatal("the server does not end")
	}
}

// ask sends a request for the object on a new connection and reads the header of the answer.
func (e *ending) ask(t *testing.T, method string) (io.Reader, *http.Response) {
	t.Helper()
	conn := dial(t, e.address)
	if _, err := io.WriteString(conn, method+plainGet[3:]+asA+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	return conn, response
}

func TestTheEndLetsAnswersEnd(t *testing.T) {
	t.Parallel()
	e := startEnding(t, time.Hour)
	idle, _ := e.ask(t, "HEAD")
	_, busy := e.ask(t, "GET")
	e.end()
	if n, err := idle.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a connection without a request got %d bytes, %v", n, err)
	}
	if n, err := io.Copy(io.Discard, busy.Body); err != nil || n != int64(e.size) {
		t.Errorf("%d of %d bytes, %v", n, e.size, err)
	}
	e.has(t)
}

func TestTheEndCutsWhatTakesTooLong(t *testing.T) {
	t.Parallel()
	e := startEnding(t, time.Millisecond)
	_, busy := e.ask(t, "GET")
	e.end()
	e.has(t)
	if n, err := io.Copy(io.Discard, busy.Body); err == nil {
		t.Errorf("all of %d bytes came, from a server that has ended", n)
	}
}

func TestAClientThatLeavesInTheMiddle(t *testing.T) {
	t.Parallel()
	e := startEnding(t, time.Hour)
	conn, _ := e.ask(t, "GET")
	conn.(io.Closer).Close()
	e.end()
	e.has(t) // well before its grace: nobody is answered any more
}
