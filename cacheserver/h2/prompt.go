// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"context"

	"google.golang.org/grpc"
)

// ReadOn tells that the handler of the context's call may go on for long without a word to its client, or wait for something else. The
// server then reads the call's connection elsewhere, if it made the call where it reads (Config.Prompt). In another server's call it does
// nothing.
func ReadOn(ctx context.Context) {
	if s, ok := grpc.ServerTransportStreamFromContext(ctx).(transportStream); ok {
		s.conn.mu.Lock()
		defer s.conn.mu.Unlock()
		s.conn.handOver(s.stream)
	}
}

// isPrompt says whether the reader may make the stream's call itself, see Config.Prompt.
func (s *Server) isPrompt(of *stream) bool {
	m := s.methods[of.path]
	return s.cfg.Prompt && of.refusal == nil && (m.stream == nil || !m.stream.ClientStreams)
}

// answer makes the call that was asked for last, once all frames that have come are read. If it is the connection's only one and its
// request is whole, it is made here: a goroutine would be woken on another core, which on a small machine costs more than a short call,
// and which may be the client's. Nothing is read meanwhile, so before the call waits for its client or has said much, another goroutine
// takes the reader's place. answer reports whether the caller is the reader still.
func (c *conn) answer() (reader bool) {
	s := c.asked
	if s == nil || c.frameWaits() {
		return true
	}
	if !c.undertake(s) {
		c.start()
		return true
	}
	c.asked = nil
	s.run()
	return c.isReader(s)
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

// undertake notes that the reader makes the stream's call, if its request is whole and no other call is under way.
func (c *conn) undertake(s *stream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !s.remote || c.running != 1 {
		return false
	}
	c.making, c.brief = s, maxBrief
	return true
}

// isReader ends what undertake began, and says whether nobody has taken the reader's place.
func (c *conn) isReader(s *stream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.making == s {
		c.making = nil
		return true
	}
	c.calls.Done()
	return false
}

// handOver has another goroutine read on if the reader makes the stream's call. c.mu is held.
func (c *conn) handOver(s *stream) {
	if c.making == s {
		c.making = nil
		c.calls.Add(1)
		go c.attend()
	}
}

// isBrief says whether a turn of the call that the reader makes can be granted and written at once, as far as one can tell. c.mu is held.
func (c *conn) isBrief(t *turn) bool {
	c.brief -= t.data
	return c.brief > 0 && !c.writing && int64(t.data) <= min(c.sendable, t.stream.sendable)
}
