// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// conn is one client's connection. One goroutine reads it (serve); any goroutine may write, see writer.
type conn struct {
	server  *Server
	memory  int64    // reserved as long as the connection is open
	raw     net.Conn // as accepted; closing it ends the connection
	net     net.Conn // raw or, after the handshake, TLS over it
	ctx     context.Context
	cancel  context.CancelFunc
	calls   sync.WaitGroup // running handlers
	backlog backlog

	// Used only by the reader.
	newcomer *Newcomer // until the first call
	in       frameReader
	received receiveWindow
	floods   floods
	newest   uint32 // the highest stream ID that the peer has opened
	agreed   bool   // the peer's first SETTINGS have arrived

	mu      sync.Mutex // protects the following fields, except as stated by out and beats
	streams streamTable
	greeted bool
	out     writer
	beats   heartbeat
}

func newConn(s *Server, raw net.Conn) *conn {
	c := &conn{
		server: s, raw: raw, net: raw, received: receiveWindow{left: connWindow}, streams: streamTable{open: map[uint32]*stream{}},
		floods: floods{idles: rate{limit: s.idlesASecond}, resets: rate{limit: s.resetsASecond}},
	}
	c.out.init(c)
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	return c
}

// serve performs the handshake, reads until the connection ends, waits for its calls and removes it from the server.
func (c *conn) serve() {
	err := c.greet()
	if err == nil {
		c.keepAlive()
		err = c.read()
		c.beats.timer.Stop()
	}
	if c.newcomer != nil {
		c.newcomer.Leave()
	}
	c.shut(err)
	c.calls.Wait()
	c.server.forget(c)
}

// admit makes a newcomer a connection that stays, since it makes a call: it waits for the memory of one.
func (c *conn) admit() error {
	if c.newcomer == nil {
		return nil
	}
	c.newcomer.Call()
	c.newcomer = nil
	memory := int64(connMemory)
	if c.server.cfg.TLS != nil {
		memory += tlsMemory
	}
	return c.reserve(memory - c.memory)
}

// reserve reserves n more bytes for the connection, once there are so many.
func (c *conn) reserve(n int64) error {
	s := c.server
	err := ConnectSoon(s.cfg.Memory, n, func() bool {
		s.shed()
		return !s.stopping()
	})
	if err != nil {
		s.warn("no memory for a connection", c.raw, err)
		return err
	}
	c.memory += n
	return nil
}

// greet does the TLS handshake, reads the client's preface and sends the server's.
func (c *conn) greet() error {
	_ = c.raw.SetDeadline(time.Now().Add(c.server.handshake))
	from, secure, err := c.server.cfg.begins(c.newcomer)
	if err != nil {
		return err
	}
	p := &peer.Peer{Addr: c.raw.RemoteAddr(), LocalAddr: c.raw.LocalAddr()}
	if secure {
		t := newTLSConn(from, c.server.cfg.TLS)
		c.net, from = t, t
		if err := t.shake(c.ctx); err != nil {
			c.server.cfg.HandshakeFailed(c.raw.RemoteAddr(), err)
			return err
		}
		p.AuthInfo = credentials.TLSInfo{State: t.ConnectionState(), CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	}
	c.ctx = peer.NewContext(c.ctx, p)
	c.in = newFrameReader(from)
	if err := c.in.preface(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.greeted, c.out.net = true, c.net
	c.out.sendLocked(func(f *http2.Framer) error {
		return errors.Join(
			f.WriteSettings(
				http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: maxStreams},
				http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHeaderList}),
			f.WriteWindowUpdate(0, connWindow-defaultWindow))
	})
	return nil
}

// fail ends every stream and interrupts the reader. c.mu is held.
func (c *conn) fail(err error) {
	if c.out.failed != nil {
		return
	}
	c.out.failed = err
	for _, s := range c.streams.open {
		c.drop(s, errBroken)
	}
	_ = c.raw.SetReadDeadline(longAgo)
	_ = c.raw.SetWriteDeadline(time.Now().Add(lastWrite)) // the reader itself may be writing
}

// longAgo, used as a deadline, ends a wait at once.
var longAgo = time.Unix(1, 0)

// shut ends the calls of the connection, and then the connection itself, with the reason.
func (c *conn) shut(err error) {
	c.mu.Lock()
	c.fail(err)
	reason := c.out.failed
	c.out.stopLocked()
	c.mu.Unlock()
	c.cancel()

	var v violation
	if errors.As(reason, &v) {
		c.server.warn("a client broke the protocol", c.raw, v)
	}
	if errors.As(reason, &v) || errors.Is(reason, errDrained) {
		if c.out.goAway(c.newest, v) == nil {
			c.linger()
		}
	}
	_ = c.raw.Close()
}

// linger gives the peer time to read what was sent: closing at once, while bytes from the peer are unread, would reset the
// connection.
func (c *conn) linger() {
	w, ok := c.raw.(interface{ CloseWrite() error })
	if !ok || w.CloseWrite() != nil || c.raw.SetReadDeadline(time.Now().Add(lastWrite)) != nil {
		return
	}
	_, _ = io.Copy(io.Discard, c.raw)
}
