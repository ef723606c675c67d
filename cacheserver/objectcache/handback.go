// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"net"
	"sync"
)

// handback is a listener of connections that net/http had and is to have again.
type handback struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newHandback(addr net.Addr) *handback {
	return &handback{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
}

// give lets a connection be accepted; when the listener is closed, it closes it.
func (h *handback) give(c net.Conn) {
	select {
	case h.conns <- c:
	case <-h.closed:
		_ = c.Close()
	}
}

// Accept waits for a connection.
func (h *handback) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (h *handback) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

// Addr is the address the connections came to.
func (h *handback) Addr() net.Addr { return h.addr }

// resumed is a connection of which something was read that is yet to be answered.
type resumed struct {
	*net.TCPConn
	unread []byte
}

// Read gives what was read before, and then what comes.
func (r *resumed) Read(p []byte) (int, error) {
	if len(r.unread) == 0 {
		return r.TCPConn.Read(p)
	}
	n := copy(p, r.unread)
	r.unread = r.unread[n:]
	return n, nil
}
