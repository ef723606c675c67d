// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/net/http2"
)

// read processes frames until the connection ends, and returns the reason.
func (c *conn) read() error {
	for {
		frame, err := c.in.next()
		c.beats.heard.Add(1)
		if err == nil && !c.agreed {
			err = c.settled(frame)
		}
		if err == nil {
			err = c.handle(frame)
		}
		var broken http2.StreamError
		if errors.As(err, &broken) {
			c.newest = max(c.newest, broken.StreamID)
			err = c.reset(broken)
		}
		if err != nil {
			return c.in.asViolation(err)
		}
	}
}

// settled checks that the peer's first frame is SETTINGS, and removes the time limit.
func (c *conn) settled(frame http2.Frame) error {
	if f, ok := frame.(*http2.SettingsFrame); !ok || f.IsAck() {
		return violated(http2.ErrCodeProtocol, "the first frame is %v, want SETTINGS", frame.Header().Type)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out.failed != nil {
		return c.out.failed
	}
	c.agreed, c.out.timeout = true, c.server.cfg.SendTimeout
	return c.net.SetDeadline(time.Time{})
}

func (c *conn) handle(frame http2.Frame) error {
	switch f := frame.(type) {
	case *http2.MetaHeadersFrame:
		return c.onHeaders(f)
	case *http2.DataFrame:
		return c.onData(f)
	case *http2.WindowUpdateFrame:
		return c.onWindowUpdate(f)
	case *http2.RSTStreamFrame:
		return c.onReset(f)
	case *http2.SettingsFrame:
		return errors.Join(c.floods.idle(), c.onSettings(f))
	case *http2.PingFrame:
		c.onPing(f)
		return c.floods.idle()
	case *http2.PriorityFrame: // RFC 9113 section 5.3.2 deprecates priorities, but still requires this check
		if f.StreamDep == f.StreamID {
			return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol, Cause: errors.New("a stream depends on itself")}
		}
		return c.floods.idle()
	case *http2.PushPromiseFrame:
		return violated(http2.ErrCodeProtocol, "a client does not push")
	default: // GOAWAY needs no reaction, since the client closes the connection. Unknown types must be ignored, RFC 9113 section 4.1.
		return c.floods.idle()
	}
}

// reset sends RST_STREAM after a stream error of the peer.
func (c *conn) reset(broken http2.StreamError) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.sendLocked(func(f *http2.Framer) error { return f.WriteRSTStream(broken.StreamID, broken.Code) })
	s := c.streams.open[broken.StreamID]
	if s == nil {
		return c.floods.idle()
	}
	c.drop(s, errViolation)
	return c.floods.reset()
}

// drop ends a stream: its call gets err, and nothing more is written for it. c.mu is held.
func (c *conn) drop(s *stream, err error) {
	s.close(err)
	c.out.dismiss(s, err)
	s.in.end(err)
	s.cancel()
}

func (c *conn) onSettings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.out.peer.window
	if err := f.ForeachSetting(c.out.peer.apply); err != nil {
		return err
	}
	for _, s := range c.streams.open {
		if !s.sendable.grow(c.out.peer.window - before) {
			return violated(http2.ErrCodeFlowControl, "SETTINGS make the window of stream %d too large", s.id)
		}
	}
	c.out.sendLocked((*http2.Framer).WriteSettingsAck)
	return nil
}

// drainPing is the payload of a PING whose answer shows that the client has received the first GOAWAY.
var drainPing = [8]byte{'d', 'r', 'a', 'i', 'n'}

func (c *conn) onPing(f *http2.PingFrame) {
	switch {
	case !f.IsAck():
		data := f.Data
		c.out.send(func(f *http2.Framer) error { return f.WritePing(true, data) })
	case f.Data == drainPing:
		c.refuse()
	}
}

func (c *conn) onWindowUpdate(f *http2.WindowUpdateFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.StreamID == 0 {
		if !c.out.window.grow(int64(f.Increment)) {
			return violated(http2.ErrCodeFlowControl, "a connection window of %d bytes", c.out.window)
		}
		c.out.next()
		return nil
	}
	s := c.streams.open[f.StreamID]
	if s == nil {
		return c.unknown(f.FrameHeader)
	}
	if !s.sendable.grow(int64(f.Increment)) {
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeFlowControl, Cause: fmt.Errorf("a window of %d bytes", s.sendable)}
	}
	c.out.next()
	return nil
}

// unknown rejects a frame for a stream that was never opened; one for a closed stream may have been in flight when it was closed.
func (c *conn) unknown(h http2.FrameHeader) error {
	if h.StreamID > c.newest || h.StreamID%2 == 0 {
		return violated(http2.ErrCodeProtocol, "%v for stream %d, which is idle", h.Type, h.StreamID)
	}
	return c.floods.idle()
}

func (c *conn) onReset(f *http2.RSTStreamFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.streams.open[f.StreamID]
	if s == nil {
		return c.unknown(f.FrameHeader)
	}
	c.drop(s, errReset)
	return c.floods.reset()
}

func (c *conn) onData(f *http2.DataFrame) error {
	size := int64(f.Length) // padding counts
	n, err := c.received.take(size)
	if err != nil {
		return err
	}
	if n > 0 {
		c.out.send(func(f *http2.Framer) error { return f.WriteWindowUpdate(0, n) })
	}
	c.mu.Lock()
	s := c.streams.open[f.StreamID]
	c.mu.Unlock()
	if s == nil {
		if err := c.unknown(f.FrameHeader); err != nil {
			return err
		}
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeStreamClosed}
	}
	if err := s.receive(f); err != nil {
		return err
	}
	if f.StreamEnded() {
		return s.remoteEnd()
	}
	if size == 0 {
		return c.floods.idle()
	}
	return nil
}

// receive puts a DATA frame into the inbox.
func (s *stream) receive(f *http2.DataFrame) error {
	if s.remote {
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeStreamClosed}
	}
	if s.window.Add(-int64(f.Length)) < 0 {
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeFlowControl, Cause: errors.New("more bytes than the stream's window")}
	}
	s.received += int64(len(f.Data()))
	s.giveBack(s.in.put(f.Data()) + int(f.Length) - len(f.Data()))
	return nil
}

// remoteEnd records that the peer has ended its side.
func (s *stream) remoteEnd() error {
	if s.length >= 0 && s.length != s.received {
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeProtocol, Cause: fmt.Errorf("%d bytes of DATA, content-length is %d", s.received, s.length)}
	}
	s.conn.mu.Lock()
	s.remote = true
	s.conn.mu.Unlock()
	s.in.finish()
	return nil
}

// widen adds n bytes to the window of a stream's peer.
func (c *conn) widen(s *stream, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.remote || s.closed != nil {
		return
	}
	s.window.Add(n)
	c.out.sendLocked(func(f *http2.Framer) error { return f.WriteWindowUpdate(s.id, uint32(n)) })
}
