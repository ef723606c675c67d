// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"time"

	"golang.org/x/net/http2"
)

// keepAlive watches over a connection until beats is stopped. Dead peers are found by TCP: keep-alive probes when
// nothing is under way, retransmission when something is. A PING tells middle boxes that the connection is used, and
// finds clients that hang; it costs a client its connection only when no call is running, because one that does not
// read for minutes, its consumer being slow, does not answer pings either. For the same reason TCP_USER_TIMEOUT is not
// set: Linux counts a closed receive window as silence, however alive the peer is (tcp_probe_timer in net/ipv4).
func (c *conn) keepAlive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.beats = time.AfterFunc(c.server.silence, c.beat)
}

// beat pings a client that has been silent, and gives up an idle one that stayed silent after that.
func (c *conn) beat() {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.heardBefore
	c.heardBefore = c.heard.Load()
	switch {
	case c.heardBefore != before:
		c.pinged = false
	case !c.pinged:
		c.pinged = true
		c.sendLocked(func(f *http2.Framer) error { return f.WritePing(false, [8]byte{}) })
	case c.running == 0:
		c.fail(errSilent)
	}
	if c.failed == nil {
		c.beats.Reset(c.server.silence)
	}
}

// drain ends the connection when its calls have ended. The client is told in two steps, RFC 9113 section 6.8: first
// to open no more streams, then, when those under way have come, which ones are the last.
func (c *conn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.greeted {
		_ = c.raw.Close()
		return
	}
	c.sendLocked(func(f *http2.Framer) error {
		return errors.Join(f.WriteGoAway(maxWindow, http2.ErrCodeNo, nil), f.WritePing(false, drainPing))
	})
	time.AfterFunc(drainWait, c.refuse)
}

// refuse begins no calls any more.
func (c *conn) refuse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.drained {
		return
	}
	c.drained = true
	c.sendLocked(func(f *http2.Framer) error { return f.WriteGoAway(c.opened, http2.ErrCodeNo, nil) })
	if c.running == 0 {
		c.fail(errDrained)
	}
}
