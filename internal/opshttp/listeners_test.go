// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package opshttp

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeflow/datacache/internal/watch"
)

// pipes is a listener whose connections are pipes without buffers, so that a client that does not read blocks the server at once, and
// that synctest knows what the server waits for.
type pipes struct {
	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.accepted:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (*pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// listen asks for the page's events on a new connection, which is closed at the end of the test.
func (p *pipes) listen(t *testing.T) *bufio.Reader {
	t.Helper()
	server, client := net.Pipe()
	p.accepted <- server
	t.Cleanup(func() { _ = client.Close() })
	if _, err := io.WriteString(client, "GET /events HTTP/1.1\r\nHost: head\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	synctest.Wait() // until the server waits for the client to read, or for time to pass
	return bufio.NewReader(client)
}

// bubble runs a test in a synctest bubble, whose time passes when everybody waits, with the page of a server whose state never changes.
func bubble(t *testing.T, test func(t *testing.T, p *pipes)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := &pipes{accepted: make(chan net.Conn), closed: make(chan struct{})}
		page := watch.New(subject{true})
		var running sync.WaitGroup
		running.Go(func() { page.Run(ctx) })
		running.Go(func() {
			if err := Serve(ctx, p, Handler(subject{true}, http.NotFoundHandler(), page)); err != nil {
				t.Error(err)
			}
		})
		defer running.Wait()
		defer cancel()
		test(t, p)
	})
}

// status reads the status line of an answer.
func status(t *testing.T, answer *bufio.Reader) string {
	t.Helper()
	line, err := answer.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// TestListenersThatDoNotReadAreDropped checks that a listener that reads nothing for 10 s loses its place, of which there are 64.
func TestListenersThatDoNotReadAreDropped(t *testing.T) {
	bubble(t, func(t *testing.T, p *pipes) {
		const full, free = "HTTP/1.1 503 Service Unavailable", "HTTP/1.1 200 OK"
		for range 64 {
			p.listen(t)
		}
		if got := status(t, p.listen(t)); got != full {
			t.Errorf("listener 65 gets %q, want %q", got, full)
		}
		time.Sleep(9 * time.Second) //nolint:forbidigo // the clock of synctest
		if got := status(t, p.listen(t)); got != full {
			t.Errorf("after 9 s a listener gets %q, want %q", got, full)
		}
		time.Sleep(2 * time.Second) //nolint:forbidigo // the clock of synctest
		for range 64 {
			if got := status(t, p.listen(t)); got != free {
				t.Fatalf("after 11 s a listener gets %q, want %q", got, free)
			}
		}
	})
}

// TestListenersGetAComment checks that a listener is sent a comment whenever it was sent nothing for 15 s, and that it is served for longer
// than other answers may take, 2 min.
func TestListenersGetAComment(t *testing.T) {
	bubble(t, func(t *testing.T, p *pipes) {
		stream := p.listen(t)
		var last time.Time
		comments, messages := 0, 0
		for began := time.Now(); time.Since(began) < 5*time.Minute; {
			line, err := stream.ReadString('\n')
			if err != nil {
				t.Fatalf("the stream ends after %s: %v", time.Since(began), err)
			}
			switch {
			case strings.HasPrefix(line, "data: "):
				messages++
			case strings.HasPrefix(line, ": nothing changed"):
				if gap := time.Since(last); gap != 15*time.Second {
					t.Errorf("a comment comes %s after what was sent before, want 15 s", gap)
				}
				comments++
			default:
				continue
			}
			last = time.Now()
		}
		if messages != 1 || comments < 19 {
			t.Errorf("in 5 min there were %d messages and %d comments, want 1 and 19", messages, comments)
		}
	})
}
