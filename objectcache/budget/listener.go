// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"sync"
)

const (
	// perHeaderByte is what a byte of a request's header takes at most: a field of four bytes has an entry in a map.
	perHeaderByte = 32
	// freeHeader is the length of a header that is in connectionBytes.
	freeHeader = 2 << 10
	// connectionBytes is what a connection takes: two goroutines, buffers, and an ordinary header.
	connectionBytes = 16<<10 + freeHeader*perHeaderByte
	// step is the unit in which longer headers take memory.
	step = 16 << 10
)

// Listener accounts for the connections of a server and for the headers of their requests. Create it with Listen.
type Listener struct {
	net.Listener
	budget *Budget // of connections; nil: no limit
	large  *Budget // of long headers
	header int     // maximum length of a request's header

	mu   sync.Mutex
	idle map[*conn]struct{} // connections without a request
}

// Listen returns a Listener over another. header is the server's maximum length of a request's header. The server calls NoteState.
func (b *Budget) Listen(on net.Listener, header int) *Listener {
	l := &Listener{Listener: on, header: header, idle: map[*conn]struct{}{}}
	if b != nil {
		l.budget, l.large = b.connections, b.large
	}
	return l
}

// Accept returns the next connection. If there is no memory for it, one that has no request is closed; without any, Accept waits.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		tcp, ok := accepted.(*net.TCPConn)
		if !ok || l.budget == nil {
			return accepted, nil
		}
		taken := l.budget.tryTake(connectionBytes)
		for !taken && l.closeIdle() {
			taken = l.budget.tryTake(connectionBytes)
		}
		if !taken && l.budget.Take(context.Background(), connectionBytes) != nil { //nolint:forbidigo // a listener has no context
			_ = tcp.Close() // nothing was sent
			continue
		}
		return &conn{TCPConn: tcp, listener: l}, nil
	}
}

// closeIdle closes a connection that has no request.
func (l *Listener) closeIdle() bool {
	l.mu.Lock()
	var one *conn
	for one = range l.idle {
		break
	}
	delete(l.idle, one)
	l.mu.Unlock()
	if one == nil {
		return false
	}
	_ = one.Close() // it has no request that could be cut
	return true
}

// NoteState is the server's ConnState.
func (l *Listener) NoteState(of net.Conn, state http.ConnState) {
	c := below(of)
	if c == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if state == http.StateIdle {
		l.idle[c] = struct{}{}
		c.reset()
		return
	}
	delete(l.idle, c)
}

type connKey struct{}

// Context is the server's ConnContext. Handler needs it.
func (l *Listener) Context(ctx context.Context, of net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, below(of))
}

// Handler returns a handler that marks the end of the request's header on its connection: below TLS a connection can't see where it ends.
func (l *Listener) Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, _ := r.Context().Value(connKey{}).(*conn); c != nil {
			c.endHeader()
		}
		h.ServeHTTP(w, r)
	})
}

// below returns the Listener's connection inside a wrapped one, such as a *tls.Conn; nil if there is none.
func below(of net.Conn) *conn {
	for {
		if c, ok := of.(*conn); ok {
			return c
		}
		over, ok := of.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		of = over.NetConn()
	}
}

// conn is a connection that takes memory for what it has read of a request. It has all of TCPConn's methods, so that files are sent by
// sendfile.
type conn struct {
	*net.TCPConn
	listener *Listener

	mu     sync.Mutex
	held   int64 // bytes of the large budget
	read   int   // bytes of the current request's header
	isBody bool  // the header has ended
	closed bool
}

// Read implements [net.Conn]; it takes memory for the bytes of a request's header.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	if n > 0 && !c.take(c.missing(p[:n])) {
		return 0, ErrFull
	}
	return n, err
}

// missing returns how much more the connection needs after it has read p.
func (c *conn) missing(p []byte) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isBody || c.closed {
		return 0
	}
	end := bytes.Index(p, []byte("\r\n\r\n"))
	if c.isBody = end >= 0; c.isBody {
		p = p[:end]
	}
	c.read = min(c.read+len(p), c.listener.header)
	return (int64(c.read-freeHeader)*perHeaderByte+step-1)/step*step - c.held
}

func (c *conn) take(n int64) bool {
	if n <= 0 {
		return true
	}
	if c.listener.large.Take(context.Background(), n) != nil { //nolint:forbidigo // a connection has no context
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		c.listener.large.Put(n)
		return false
	}
	c.held += n
	return true
}

// endHeader notes that the rest of the request is its body.
func (c *conn) endHeader() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isBody = true
}

// reset returns the memory of the header of the request that ended.
func (c *conn) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read, c.isBody = 0, false
	c.listener.large.Put(c.held)
	c.held = 0
}

// Close closes the connection and returns its memory.
func (c *conn) Close() error {
	c.mu.Lock()
	held, again := c.held, c.closed
	c.held, c.closed = 0, true
	c.mu.Unlock()
	c.listener.large.Put(held)
	if !again {
		c.listener.budget.Put(connectionBytes)
	}
	return c.TCPConn.Close()
}
