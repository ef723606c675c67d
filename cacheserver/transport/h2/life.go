// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
)

// heartbeat detects silent peers. Between two calls of look, either a frame was received, or a PING is requested, or the peer was
// silent despite a PING. conn.mu protects all fields but heard.
type heartbeat struct {
	heard  atomic.Uint64 // frames read
	before uint64        // value of heard at the last look
	pinged bool          // a PING was requested since the last frame was received
	timer  *time.Timer   // calls conn.beat
}

// look returns whether to ping the peer, and otherwise whether the peer is silent.
func (h *heartbeat) look() (ping, silent bool) {
	before := h.before
	h.before = h.heard.Load()
	if h.before != before {
		h.pinged = false
		return false, false
	}
	if !h.pinged {
		h.pinged = true
		return true, false
	}
	return false, true
}

// keepAlive monitors a connection until the timer of beats is stopped. TCP detects dead peers: by keep-alive probes while nothing is
// in flight, by retransmission otherwise. A PING shows middleboxes that the connection is in use, and detects clients that hang. An
// unanswered PING closes the connection only if no call is running, because a client whose consumer is slow may not read for minutes,
// and so not answer pings either. For the same reason TCP_USER_TIMEOUT is not set: Linux treats a closed receive window like a silent
// peer (tcp_probe_timer in net/ipv4).
func (c *conn) keepAlive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.beats.timer = time.AfterFunc(c.server.silence, c.beat)
}

// beat pings a client that has been silent, and closes the connection of an idle one that does not answer.
func (c *conn) beat() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch ping, silent := c.beats.look(); {
	case ping:
		c.out.sendLocked(func(f *http2.Framer) error { return f.WritePing(false, [8]byte{}) })
	case silent && c.streams.running == 0:
		c.fail(errSilent)
	}
	if c.out.failed == nil {
		c.beats.timer.Reset(c.server.silence)
	}
}

// drain ends the connection when its calls have ended. The client is told in two steps, RFC 9113 section 6.8: first to open no more
// streams, then, when streams already in flight have arrived, which ones are the last.
func (c *conn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drainLocked()
}

// shed drains the connection if its last call returned a while ago.
func (c *conn) shed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams.begun > 0 && c.streams.running == 0 && time.Since(c.streams.quiet) > shedAfter {
		c.drainLocked()
	}
}

func (c *conn) drainLocked() {
	if c.streams.leaving {
		return
	}
	c.streams.leaving = true
	if !c.greeted {
		_ = c.raw.Close()
		return
	}
	c.out.sendLocked(func(f *http2.Framer) error {
		return errors.Join(f.WriteGoAway(maxWindow, http2.ErrCodeNo, nil), f.WritePing(false, drainPing))
	})
	time.AfterFunc(drainWait, c.refuse)
}

// refuse stops accepting calls.
func (c *conn) refuse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams.drained {
		return
	}
	c.streams.drained = true
	c.out.sendLocked(func(f *http2.Framer) error { return f.WriteGoAway(c.streams.begun, http2.ErrCodeNo, nil) })
	if c.streams.over() {
		c.fail(errDrained)
	}
}
