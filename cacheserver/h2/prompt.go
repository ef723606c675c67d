// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

// isPrompt says whether the reader may make the stream's call itself, see Config.Prompt.
func (s *Server) isPrompt(of *stream) bool {
	return s.cfg.Prompt && of.refusal == nil && s.methods[of.path].unary != nil
}

// answer makes the call that was asked for last, once all frames that have come are read. If it is the connection's only one and its
// request is whole, it is made here: a goroutine would be woken on another core, which on a small machine costs more than the call, and
// which may be the client's. Nothing is read meanwhile, so what could wait for the client is left to a goroutine.
func (c *conn) answer() {
	s := c.asked
	if s == nil || c.frameWaits() {
		return
	}
	if !c.isAlone(s) {
		c.start()
		return
	}
	c.asked = nil
	st, o := s.call(c.server.methods[s.path])
	if c.takes(s, o.left) {
		defer c.done(s)
		s.tell(st, o)
		return
	}
	c.calls.Go(func() {
		defer c.done(s)
		s.tell(st, o)
	})
}

// frameWaits says whether a whole frame has come that was not read yet.
func (c *conn) frameWaits() bool {
	const header = 9
	have := c.buffered.Buffered()
	if have < header {
		return false
	}
	head, err := c.buffered.Peek(header)
	return err == nil && have >= header+(int(head[0])<<16|int(head[1])<<8|int(head[2]))
}

// isAlone says whether the stream's request is whole and no other call is under way.
func (c *conn) isAlone(s *stream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.remote && c.running == 1
}

// takes says whether n bytes of the stream can be written at once, as far as the peer's windows go.
func (c *conn) takes(s *stream, n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.writing && n < minPlaced && int64(n) <= min(c.sendable, s.sendable)
}
