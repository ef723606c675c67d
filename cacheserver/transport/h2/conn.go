// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// conn is one client's connection. One goroutine reads it (serve); any goroutine may write, see turn.
type conn struct {
	server *Server
	raw    net.Conn // as accepted; closing it ends everything
	net    net.Conn // raw, or TLS over it
	ctx    context.Context
	cancel context.CancelFunc
	calls  sync.WaitGroup // running handlers

	// Used by the reader alone.
	frames   *http2.Framer
	buffered *bufio.Reader
	bound    *io.LimitedReader // what the next frame may take of buffered
	window   int64             // what the peer may send over all streams
	unread   int64             // bytes received and not yet given back to window
	newest   uint32            // the highest stream the peer has opened
	agreed   bool              // the peer's first SETTINGS have come
	idles    rate
	resets   rate

	// Used by whoever has the turn to write.
	out     *composer
	buffers net.Buffers

	mu          sync.Mutex
	still       sync.Cond          // nobody writes
	streams     map[uint32]*stream // those that neither side has closed
	running     int                // handlers
	sendable    int64              // what the peer takes over all streams
	peerWindow  int64              // of a new stream
	peerFrame   int
	peerTable   uint32
	writing     bool
	waiting     []*turn
	control     frameBuffer   // control frames to be written
	framer      *http2.Framer // writes into control
	failed      error         // why nothing is written any more
	greeted     bool
	drained     bool   // no call is begun any more: the connection ends with the last one
	opened      uint32 // the last stream whose call was begun
	pinged      bool   // these three are beat's
	heardBefore uint64
	beats       *time.Timer

	heard atomic.Uint64 // frames read, for beat
}

// frameBuffer gathers control frames.
type frameBuffer []byte

// Write implements io.Writer.
func (b *frameBuffer) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}

func newConn(s *Server, raw net.Conn) *conn {
	c := &conn{
		server: s, raw: raw, net: raw,
		window: connWindow, idles: rate{limit: s.idlesASecond}, resets: rate{limit: s.resetsASecond},
		streams: map[uint32]*stream{}, sendable: defaultWindow, peerWindow: defaultWindow, peerFrame: defaultFrame,
		peerTable: maxTable, out: newComposer(),
	}
	c.still.L = &c.mu
	c.framer = http2.NewFramer(&c.control, nil)
	if s.cfg.TLS != nil {
		c.net = newTLSConn(raw, s.cfg.TLS)
	}
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	return c
}

// serve greets the client, reads until the connection ends, waits for its calls and has the server forget it.
func (c *conn) serve() {
	err := c.greet()
	if err == nil {
		c.keepAlive()
		err = c.read()
		c.beats.Stop()
	}
	c.shut(err)
	c.calls.Wait()
	c.server.forget(c)
}

// greet does the TLS handshake, reads the client's preface and sends the server's.
func (c *conn) greet() error {
	_ = c.net.SetDeadline(time.Now().Add(handshakeTime))
	p := &peer.Peer{Addr: c.raw.RemoteAddr(), LocalAddr: c.raw.LocalAddr()}
	if t, ok := c.net.(*tlsConn); ok {
		if err := t.HandshakeContext(c.ctx); err != nil {
			return fmt.Errorf("TLS: %w", err)
		}
		if got := t.ConnectionState().NegotiatedProtocol; got != alpn {
			return fmt.Errorf("TLS: the client agreed on protocol %q, want %q", got, alpn)
		}
		p.AuthInfo = credentials.TLSInfo{State: t.ConnectionState(), CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	}
	c.ctx = peer.NewContext(c.ctx, p)
	c.buffered = bufio.NewReaderSize(c.net, readBuffer)
	c.bound = &io.LimitedReader{R: c.buffered}
	c.frames = http2.NewFramer(nil, c.bound)
	c.frames.SetReuseFrames()
	c.frames.SetMaxReadFrameSize(defaultFrame)
	c.frames.MaxHeaderListSize = maxHeaderList
	c.frames.ReadMetaHeaders = hpack.NewDecoder(maxTable, nil)

	c.bound.N = int64(len(http2.ClientPreface))
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c.bound, preface); err != nil {
		return fmt.Errorf("preface: %w", err)
	}
	if string(preface) != http2.ClientPreface {
		return violation{http2.ErrCodeProtocol, fmt.Sprintf("the connection starts with %.24q: want HTTP/2", preface)}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.greeted = true
	c.sendLocked(func(f *http2.Framer) error {
		return errors.Join(
			f.WriteSettings(
				http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: maxStreams},
				http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHeaderList}),
			f.WriteWindowUpdate(0, connWindow-defaultWindow))
	})
	return nil
}

// readBuffer holds requests, which are small.
const readBuffer = 4 << 10

// send queues control frames. It never waits for the peer.
func (c *conn) send(frames func(*http2.Framer) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sendLocked(frames)
}

func (c *conn) sendLocked(frames func(*http2.Framer) error) {
	if c.failed != nil {
		return
	}
	if err := frames(c.framer); err != nil {
		c.fail(fmt.Errorf("encode control frames: %w", err))
		return
	}
	if len(c.control) > maxControl {
		c.fail(violation{http2.ErrCodeEnhanceYourCalm, "the peer asks for answers and does not read them"})
		return
	}
	c.next()
}

// fail ends every stream and lets the reader know. c.mu is held.
func (c *conn) fail(err error) {
	if c.failed != nil {
		return
	}
	c.failed = err
	for _, s := range c.streams {
		c.drop(s, errBroken)
	}
	_ = c.raw.SetReadDeadline(longAgo)
	_ = c.raw.SetWriteDeadline(time.Now().Add(lastWrite)) // the reader itself may be writing
}

// longAgo as a deadline ends a wait at once.
var longAgo = time.Unix(1, 0)

// shut ends the connection: its calls, then, with the reason, the connection itself.
func (c *conn) shut(err error) {
	c.mu.Lock()
	c.fail(err)
	reason := c.failed
	for c.writing {
		c.still.Wait()
	}
	c.mu.Unlock()
	c.cancel()

	var v violation
	if errors.As(reason, &v) {
		c.server.cfg.Log.Warn("a client broke the protocol", "client", c.raw.RemoteAddr(), "error", v)
	}
	if errors.As(reason, &v) || errors.Is(reason, errDrained) {
		// The framer is nobody else's now: send does nothing once the connection has failed.
		if c.framer.WriteGoAway(c.newest, v.code, []byte(v.reason)) == nil && c.write([][]byte{c.control}) == nil {
			c.linger()
		}
	}
	_ = c.raw.Close()
}

// linger lets the peer read what was sent: closing at once, with bytes of the peer's unread, would reset the connection.
func (c *conn) linger() {
	w, ok := c.raw.(interface{ CloseWrite() error })
	if !ok || w.CloseWrite() != nil || c.raw.SetReadDeadline(time.Now().Add(lastWrite)) != nil {
		return
	}
	_, _ = io.Copy(io.Discard, c.raw)
}
