// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"
)

// network connects hosts by in-memory byte streams. A byte arrives after the latency of its link, later if the host is slow. Delays
// are random, from a separate seed for each connection, so they don't depend on the order in which connections are used.
type network struct {
	seed    uint64
	latency time.Duration // mean latency in one direction

	mu        sync.Mutex
	listeners map[netip.AddrPort]*listener
	hosts     []*host
	dialed    map[string]uint64 // number of connections made so far, by "from to"
}

func newNetwork(seed uint64, latency time.Duration) *network {
	return &network{seed: seed, latency: latency, listeners: map[netip.AddrPort]*listener{}, dialed: map[string]uint64{}}
}

// host is a process's place in the network: its connections and listeners belong to it. A restarted process is a new host with the
// same address.
type host struct {
	net  *network
	addr netip.Addr

	// Protected by net.mu.
	dead   bool
	frozen bool          // while set, nothing is sent to or from the host
	pace   time.Duration // additional time for each KiB that it sends
	conns  []*conn       // its ends of connections, in the order of their creation
	ports  uint16
}

// host adds a process at an address.
func (n *network) host(addr netip.Addr) *host {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := &host{net: n, addr: addr, ports: 32768}
	n.hosts = append(n.hosts, h)
	return h
}

// free reports whether nothing listens on host:port.
func (n *network) free(address string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.listeners[netip.MustParseAddrPort(address)] == nil
}

// end breaks all connections.
func (n *network) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, h := range n.hosts {
		h.dead = true
		for _, c := range h.conns {
			c.resetLocked()
		}
	}
}

// kill ends the host: its own ends of connections fail at once. The peers' ends are reset or, with vanish, receive nothing more until
// they give up.
func (h *host) kill(vanish bool) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.dead = true
	for at, l := range h.net.listeners {
		if l.host == h {
			delete(h.net.listeners, at)
			l.closeLocked()
		}
	}
	for _, c := range h.conns {
		if !vanish {
			c.resetLocked()
			continue
		}
		c.in.failed, c.out.broken = net.ErrClosed, net.ErrClosed
		c.in.changed.Broadcast()
		c.out.changed.Broadcast()
		time.AfterFunc(givenUp, func() { c.reset(syscall.ETIMEDOUT) })
	}
}

// freeze stops all traffic to and from the host, or resumes it.
func (h *host) freeze(yes bool) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.frozen = yes
	for _, c := range h.conns {
		c.in.changed.Broadcast()
		c.out.changed.Broadcast()
	}
}

// slow sets the additional time for each KiB that the host sends.
func (h *host) slow(pace time.Duration) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.pace = pace
}

// cut resets one of the host's connections, and reports whether there was one.
func (h *host) cut(random *rand.Rand) bool {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	open := slices.DeleteFunc(slices.Clone(h.conns), func(c *conn) bool { return c.in.failed != nil || c.in.ended })
	if len(open) == 0 {
		return false
	}
	open[random.IntN(len(open))].resetLocked()
	return true
}

// listen opens a listener on a port of the host.
func (h *host) listen(port uint16) (net.Listener, error) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	at := netip.AddrPortFrom(h.addr, port)
	if h.net.listeners[at] != nil {
		return nil, fmt.Errorf("listen on %s: %w", at, syscall.EADDRINUSE)
	}
	l := &listener{host: h, at: at}
	l.changed.L = &h.net.mu
	h.net.listeners[at] = l
	return l, nil
}

// dial connects to host:port, which takes a round trip.
func (h *host) dial(ctx context.Context, address string) (net.Conn, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	n := h.net
	n.mu.Lock()
	wait := 2 * n.latency
	n.mu.Unlock()
	for {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, fmt.Errorf("dial %s: %w", address, ctx.Err())
		}
		conn, err := n.connect(h, at)
		if !errors.Is(err, errFrozen) {
			return conn, err
		}
		wait = 100 * time.Millisecond // like a retransmitted SYN
	}
}

var errFrozen = errors.New("a host is frozen")

func (n *network) connect(h *host, at netip.AddrPort) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.listeners[at]
	switch {
	case h.dead:
		return nil, fmt.Errorf("dial %s: %w", at, syscall.ENETDOWN)
	case l == nil:
		return nil, fmt.Errorf("dial %s: %w", at, syscall.ECONNREFUSED)
	case h.frozen || l.host.frozen:
		return nil, errFrozen
	}
	h.ports++
	from := netip.AddrPortFrom(h.addr, h.ports)
	link := fmt.Sprintf("%s %s", h.addr, at)
	n.dialed[link]++
	number := n.dialed[link]
	there, back := newPipe(n, h, l.host, link, number), newPipe(n, l.host, h, link+" back", number)
	near := &conn{in: back, out: there, local: net.TCPAddrFromAddrPort(from), remote: net.TCPAddrFromAddrPort(at)}
	far := &conn{in: there, out: back, local: near.remote, remote: near.local}
	h.conns, l.host.conns = append(h.conns, near), append(l.host.conns, far)
	l.waiting = append(l.waiting, far)
	l.changed.Broadcast()
	return near, nil
}

// listener is one open port.
type listener struct {
	host *host
	at   netip.AddrPort

	// Protected by the network's mu.
	changed sync.Cond
	waiting []*conn
	closed  bool
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	l.host.net.mu.Lock()
	defer l.host.net.mu.Unlock()
	for len(l.waiting) == 0 {
		if l.closed {
			return nil, net.ErrClosed
		}
		l.changed.Wait()
	}
	c := l.waiting[0]
	l.waiting = l.waiting[1:]
	return c, nil
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.host.net.mu.Lock()
	defer l.host.net.mu.Unlock()
	if l.host.net.listeners[l.at] == l {
		delete(l.host.net.listeners, l.at)
	}
	for _, c := range l.waiting {
		c.resetLocked()
	}
	l.waiting = nil
	l.closeLocked()
	return nil
}

func (l *listener) closeLocked() {
	l.closed = true
	l.changed.Broadcast()
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.at) }

// conn is one end of a connection.
type conn struct {
	in, out       *pipe
	local, remote net.Addr
}

var _ net.Conn = (*conn)(nil)

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) { return c.in.read(p) }

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) { return c.out.write(p) }

// Close implements net.Conn.
func (c *conn) Close() error {
	c.in.net.mu.Lock()
	defer c.in.net.mu.Unlock()
	c.out.endLocked()
	c.in.abandonLocked()
	return nil
}

// CloseWrite signals the end of the stream to the peer.
func (c *conn) CloseWrite() error {
	c.in.net.mu.Lock()
	defer c.in.net.mu.Unlock()
	c.out.endLocked()
	return nil
}

// resetLocked breaks the connection for both ends.
func (c *conn) resetLocked() {
	c.in.failLocked(syscall.ECONNRESET, syscall.ECONNRESET)
	c.out.failLocked(syscall.ECONNRESET, syscall.ECONNRESET)
}

// reset breaks the connection with an error.
func (c *conn) reset(err error) {
	c.in.net.mu.Lock()
	defer c.in.net.mu.Unlock()
	c.in.failLocked(err, err)
	c.out.failLocked(err, err)
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.net.mu.Lock()
	defer c.in.net.mu.Unlock()
	c.in.setLocked(&c.in.readBy, t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.in.net.mu.Lock()
	defer c.in.net.mu.Unlock()
	c.out.setLocked(&c.out.writeBy, t)
	return nil
}

// dialTCP is dial in the form that an HTTP client needs.
func (h *host) dialTCP(ctx context.Context, _, address string) (net.Conn, error) {
	return h.dial(ctx, address)
}
