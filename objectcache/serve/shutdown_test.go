// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/kubeflow/datacache/objectcache/buckets"
	"github.com/kubeflow/datacache/objectcache/router"
	"github.com/kubeflow/datacache/objectcache/store"
	"github.com/kubeflow/datacache/test/kit/deadline"
)

// plainGet is the start of a GET request, without the empty line.
const plainGet = "GET /v1/objects/open/x HTTP/1.1\r\nHost: cache\r\n"

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// dial connects until the end of the test.
func dial(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	deadline.Bound(t, conn)
	return conn.(*net.TCPConn)
}

// ending is a server that a test shuts down. It has one object, which is larger than any socket buffer.
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

// large is the size of an object that exceeds all socket buffers.
const large = 64 << 20

// withLarge returns an open server with a large object "x" in bucket "open", and its store's folder.
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

// wait returns when the server has ended.
func (e *ending) wait(t *testing.T) {
	t.Helper()
	if err := deadline.Receive(t, e.ended, "the server to end"); err != nil {
		t.Error(err)
	}
}

// ask sends a request for the object on a new connection and reads the response header.
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

func TestShutdownFinishesAnswers(t *testing.T) {
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
	e.wait(t)
}

func TestShutdownCutsSlowAnswers(t *testing.T) {
	t.Parallel()
	e := startEnding(t, time.Millisecond)
	_, busy := e.ask(t, "GET")
	e.end()
	e.wait(t)
	if n, err := io.Copy(io.Discard, busy.Body); err == nil {
		t.Errorf("all of %d bytes came, from a server that has ended", n)
	}
}

func TestClientDisconnects(t *testing.T) {
	t.Parallel()
	e := startEnding(t, time.Hour)
	conn, _ := e.ask(t, "GET")
	conn.(io.Closer).Close()
	e.end()
	e.wait(t) // well before the grace period ends: no requests are running any more
}
