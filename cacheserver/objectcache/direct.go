// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// direct answers reads of what is here past net/http, which takes more CPU time for a request than the kernel takes to send
// 100 KB (docs/performance.md). A connection begins at net/http; the first read that finds its object takes it over (Hijack),
// and what comes next on it is answered here for as long as it is simple and finds its object. With anything else, and be it
// half a header, the connection goes back to net/http, its unread bytes first. So there is one place that refuses, forwards,
// takes bodies in, and limits headers and their time: net/http's.
type direct struct {
	server *Server
	back   *handback

	mu       sync.Mutex
	stopping bool
	sessions map[*session]struct{}
	running  sync.WaitGroup // Add is called with mu held and stopping false
}

func newDirect(s *Server, on net.Addr) *direct {
	return &direct{server: s, back: newHandback(on), sessions: map[*session]struct{}{}}
}

// ServeHTTP has the Server answer what net/http has parsed.
func (d *direct) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ProtoAtLeast(1, 1) && !r.Close && r.Body == http.NoBody {
		d.server.handle(w, r, d)
		return
	}
	d.server.handle(w, r, nil)
}

// takeOver answers a read that net/http has parsed with what was found, and then what comes next on its connection; it
// returns when that is over. It is false, and has done nothing, if net/http is to answer.
func (d *direct) takeOver(r *request, f *found) bool {
	if !d.begin() {
		return false
	}
	defer d.running.Done()
	conn, buffered, err := r.control.Hijack()
	if err != nil {
		return false
	}
	c := newSession(d, conn, buffered.Reader)
	d.keep(c)
	rest := c.run(r.Context(), r.Method, f)
	d.leave(c)
	if rest != nil {
		d.back.give(rest)
	}
	return true
}

// begin counts a session in, if none are stopped yet: before Hijack, for from then on net/http knows nothing of it.
func (d *direct) begin() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopping {
		return false
	}
	d.running.Add(1)
	return true
}

// keep gives a session time for its next request, or none when sessions are stopped.
func (d *direct) keep(c *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sessions[c] = struct{}{}
	until := time.Now().Add(d.server.limits.idle)
	if d.stopping {
		until = over
	}
	_ = c.conn.SetReadDeadline(until) // what is wrong with the connection, the next read meets too
}

func (d *direct) leave(c *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.sessions, c)
}

// over is a deadline that is.
var over = time.Unix(1, 0)

// stop has each session end when what it is answering is sent.
func (d *direct) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopping = true
	for c := range d.sessions {
		_ = c.conn.SetReadDeadline(over)
	}
}

// wait returns when all sessions have ended after stop; it cuts off those that have not when ctx ends.
func (d *direct) wait(ctx context.Context) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.running.Wait()
	}()
	select {
	case <-ended:
		return
	case <-ctx.Done():
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.sessions {
		_ = c.conn.Close()
	}
}
