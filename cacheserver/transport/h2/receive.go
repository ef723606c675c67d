// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/net/http2"
)

// read handles frames until the connection ends, and says why it did.
func (c *conn) read() error {
	for {
		c.bound.N = maxRead
		frame, err := c.frames.ReadFrame()
		c.heard.Add(1)
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
			return c.asViolation(err)
		}
	}
}

// settled checks that the peer's first frame is SETTINGS, and takes the time limit off.
func (c *conn) settled(frame http2.Frame) error {
	if f, ok := frame.(*http2.SettingsFrame); !ok || f.IsAck() {
		return violated(http2.ErrCodeProtocol, "the first frame is %v, want SETTINGS", frame.Header().Type)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed != nil {
		return c.failed
	}
	c.agreed = true
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
		return errors.Join(c.idle(), c.onSettings(f))
	case *http2.PingFrame:
		c.onPing(f)
		return c.idle()
	case *http2.PriorityFrame: // RFC 9113 section 5.3.2 does away with priorities, but not with this check
		if f.StreamDep == f.StreamID {
			return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol, Cause: errors.New("a stream depends on itself")}
		}
		return c.idle()
	case *http2.PushPromiseFrame:
		return violated(http2.ErrCodeProtocol, "a client does not push")
	default: // GOAWAY: the client closes when it is done. Unknown types must be ignored, RFC 9113 section 4.1.
		return c.idle()
	}
}

// idle counts a frame that carries nothing.
func (c *conn) idle() error {
	if c.idles.exceeded(time.Now()) {
		return violated(http2.ErrCodeEnhanceYourCalm, "more than %d frames a second that carry nothing", c.idles.limit)
	}
	return nil
}

// reset ends a stream for what its peer did.
func (c *conn) reset(broken http2.StreamError) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sendLocked(func(f *http2.Framer) error { return f.WriteRSTStream(broken.StreamID, broken.Code) })
	s := c.streams[broken.StreamID]
	if s == nil {
		return c.idle()
	}
	c.drop(s, errViolation)
	return c.countReset()
}

func (c *conn) countReset() error {
	if c.resets.exceeded(time.Now()) {
		return violated(http2.ErrCodeEnhanceYourCalm, "more than %d streams a second that end before their time", c.resets.limit)
	}
	return nil
}

// drop ends a stream: its call gets err and nothing is written for it any more. c.mu is held.
func (c *conn) drop(s *stream, err error) {
	delete(c.streams, s.id)
	if s.closed == nil {
		s.closed = err
	}
	c.dismiss(s, err)
	s.in.end(err)
	s.cancel()
}

func (c *conn) onSettings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.peerWindow
	if err := f.ForeachSetting(c.apply); err != nil {
		return err
	}
	for _, s := range c.streams {
		if s.sendable += c.peerWindow - before; s.sendable > maxWindow {
			return violated(http2.ErrCodeFlowControl, "SETTINGS make the window of stream %d too large", s.id)
		}
	}
	c.sendLocked((*http2.Framer).WriteSettingsAck)
	return nil
}

// apply takes one setting of the peer. c.mu is held.
func (c *conn) apply(s http2.Setting) error {
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID {
	case http2.SettingHeaderTableSize:
		c.peerTable = min(s.Val, maxTable)
	case http2.SettingMaxFrameSize:
		c.peerFrame = int(s.Val)
	case http2.SettingInitialWindowSize:
		c.peerWindow = int64(s.Val)
	}
	return nil
}

// drainPing is the PING whose answer tells that the client has seen the first GOAWAY.
var drainPing = [8]byte{'d', 'r', 'a', 'i', 'n'}

func (c *conn) onPing(f *http2.PingFrame) {
	switch {
	case !f.IsAck():
		data := f.Data
		c.send(func(f *http2.Framer) error { return f.WritePing(true, data) })
	case f.Data == drainPing:
		c.refuse()
	}
}

func (c *conn) onWindowUpdate(f *http2.WindowUpdateFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.StreamID == 0 {
		if c.sendable += int64(f.Increment); c.sendable > maxWindow {
			return violated(http2.ErrCodeFlowControl, "a connection window of %d bytes", c.sendable)
		}
		c.next()
		return nil
	}
	s := c.streams[f.StreamID]
	if s == nil {
		return c.unknown(f.FrameHeader)
	}
	if s.sendable += int64(f.Increment); s.sendable > maxWindow {
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeFlowControl, Cause: fmt.Errorf("a window of %d bytes", s.sendable)}
	}
	c.next()
	return nil
}

// unknown refuses a frame for a stream that was never opened; one for a closed stream may have crossed its end.
func (c *conn) unknown(h http2.FrameHeader) error {
	if h.StreamID > c.newest || h.StreamID%2 == 0 {
		return violated(http2.ErrCodeProtocol, "%v for stream %d, which is idle", h.Type, h.StreamID)
	}
	return c.idle()
}

func (c *conn) onReset(f *http2.RSTStreamFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.streams[f.StreamID]
	if s == nil {
		return c.unknown(f.FrameHeader)
	}
	c.drop(s, errReset)
	return c.countReset()
}

func (c *conn) onData(f *http2.DataFrame) error {
	size := int64(f.Length) // padding counts
	if c.window -= size; c.window < 0 {
		return violated(http2.ErrCodeFlowControl, "%d bytes more than the connection's window", -c.window)
	}
	// The bytes wait in their stream's own window, so the connection's is open again at once.
	if c.unread += size; c.unread >= connWindow/2 {
		n := uint32(c.unread)
		c.window, c.unread = c.window+c.unread, 0
		c.send(func(f *http2.Framer) error { return f.WriteWindowUpdate(0, n) })
	}
	c.mu.Lock()
	s := c.streams[f.StreamID]
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
		return c.idle()
	}
	return nil
}

// receive takes a DATA frame into the inbox.
func (s *stream) receive(f *http2.DataFrame) error {
	if s.remote {
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeStreamClosed}
	}
	if s.window.Add(-int64(f.Length)) < 0 {
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeFlowControl, Cause: errors.New("more bytes than the stream's window")}
	}
	s.in.put(f.Data())
	s.received += int64(len(f.Data()))
	if pad := int(f.Length) - len(f.Data()); pad > 0 {
		s.giveBack(pad)
	}
	return nil
}

// remoteEnd notes that the peer has ended its side.
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
