// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"slices"
	"time"
)

// turn is a stream's wish to write on its connection. Turns are granted in the order of asking, to whom has something
// that the peer's windows let through.
type turn struct {
	stream *stream
	data   int  // bytes of DATA wanted
	frames bool // there are frames to write that no window holds back
	last   bool // it ends the stream

	ready chan struct{} // buffered; gets one value once granted or failed
	// Set before ready:
	granted  int   // bytes of DATA that may be written
	halfOpen bool  // the peer has not ended its side
	err      error // why nothing may be written
}

// begin waits for a turn and takes the windows' bytes for it. After it succeeds the caller alone writes to the
// connection, until end.
func (c *conn) begin(t *turn) (int, error) {
	c.mu.Lock()
	if err := c.unsendable(t); err != nil {
		c.mu.Unlock()
		return 0, err
	}
	// Nobody who could write waits while nobody writes (see next), so whoever comes may start at once.
	if !c.writing && c.grant(t) {
		c.mu.Unlock()
		return t.granted, nil
	}
	t.err = nil
	if t.ready == nil {
		t.ready = make(chan struct{}, 1)
	}
	c.waiting = append(c.waiting, t)
	c.mu.Unlock()
	if t.last && t.data == 0 { // a call whose context has ended says so
		<-t.ready
		return t.granted, t.err
	}
	select {
	case <-t.ready:
		return t.granted, t.err
	case <-t.stream.ctx.Done():
	}
	c.mu.Lock()
	if i := slices.Index(c.waiting, t); i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
		c.mu.Unlock()
		return 0, t.stream.contextError()
	}
	c.mu.Unlock()
	<-t.ready // granted or failed in the meantime
	return t.granted, t.err
}

// unsendable says why the stream may not write. c.mu is held.
func (c *conn) unsendable(t *turn) error {
	switch s := t.stream; {
	case s.closed != nil:
		return s.closed
	case s.ending && !t.last:
		return errCallEnded
	}
	return nil
}

// grant gives the connection to t if something of it may be written now. c.mu is held and nobody is writing.
func (c *conn) grant(t *turn) bool {
	n := min(int64(c.piece(t.data)), c.sendable, t.stream.sendable)
	if n <= 0 && !t.frames {
		return false
	}
	n = max(n, 0)
	c.sendable -= n
	t.stream.sendable -= n
	t.granted, t.halfOpen = int(n), !t.stream.remote
	if t.last && t.granted == t.data { // before the peer can know and open the next one
		delete(c.streams, t.stream.id)
		t.stream.closed = errCallEnded
	}
	c.take()
	return true
}

// piece is how many of n bytes one turn may write: a quantum, or a frame where a message may be one, and not all but a
// last bit. c.mu is held.
func (c *conn) piece(n int) int {
	most := quantum
	if c.takesWhole() {
		most = max(most, c.peerFrame)
	}
	if n > most+defaultFrame {
		return most
	}
	return n
}

// takesWhole says whether the peer wants a message as one frame, see compose. c.mu is held.
func (c *conn) takesWhole() bool { return c.peerWindow == maxWindow }

// take makes the caller the connection's writer, with the control frames that have gathered. c.mu is held.
func (c *conn) take() {
	c.writing = true
	c.control, c.out.control = c.out.control[:0], c.control
	c.out.configure(c.peerFrame, c.takesWhole(), c.peerTable)
	if limit := c.server.cfg.SendTimeout; limit > 0 && c.agreed {
		_ = c.raw.SetWriteDeadline(time.Now().Add(limit)) // a closed connection fails at the write
	}
}

// end gives the turn back after writing.
func (c *conn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing = false
	if err != nil {
		c.fail(err)
	}
	c.next()
}

// next gives the connection to whom it is due; it must be called after every change that may let somebody write.
// c.mu is held.
func (c *conn) next() {
	if c.writing {
		return
	}
	for i, t := range c.waiting {
		if c.grant(t) {
			c.waiting = slices.Delete(c.waiting, i, i+1)
			t.ready <- struct{}{}
			return
		}
	}
	if len(c.control) > 0 && c.failed == nil {
		c.take()
		go func() { c.end(c.write(c.out.controlAlone())) }()
		return
	}
	c.still.Broadcast()
}

// dismiss fails the turns that wait for the stream. c.mu is held.
func (c *conn) dismiss(s *stream, err error) {
	c.waiting = slices.DeleteFunc(c.waiting, func(t *turn) bool {
		if t.stream != s {
			return false
		}
		t.err = err
		t.ready <- struct{}{}
		return true
	})
}
