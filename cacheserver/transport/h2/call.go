// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"context"
	"errors"
	"io"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// open begins a call on a new stream; ended is set if the request has no body.
func (c *conn) open(id uint32, r request, ended bool) error {
	s := &stream{conn: c, id: id, request: r, in: newInbox(c.server.cfg.Memory), budget: c.server.cfg.Memory}
	s.window.Store(defaultWindow)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.out.failed != nil, c.streams.drained: // GOAWAY tells the client
		return nil
	case c.streams.running >= maxStreams:
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream, Cause: errors.New("too many streams")}
	}
	memory := memoryOf(&r)
	if c.streams.running > 0 {
		memory += callMemory
	}
	if err := c.server.cfg.Memory.Reserve(memory); err != nil {
		if c.streams.running >= maxRefused {
			return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream, Cause: err}
		}
		memory = 0
		s.request = request{contentType: r.contentType, timeout: r.timeout, code: r.code, length: r.length, early: true,
			refusal: status.Newf(codes.ResourceExhausted, "no memory for another call: %v", err)}
	}
	s.memory = memory
	ctx := metadata.NewIncomingContext(c.ctx, s.metadata)
	if r.timeout >= 0 {
		ctx, s.cancel = context.WithTimeout(ctx, r.timeout)
	} else {
		ctx, s.cancel = context.WithCancel(ctx)
	}
	s.ctx = grpc.NewContextWithServerTransportStream(ctx, transportStream{s})
	s.sendable = sendWindow(c.out.peer.window)
	if ended {
		s.remote = true
		s.in.finish()
	}
	c.streams.add(s)
	c.calls.Go(s.run)
	return nil
}

// run makes the call and answers it.
func (s *stream) run() {
	defer s.conn.done(s)
	m, known := s.conn.server.methods[s.path]
	switch {
	case s.refusal != nil:
		s.refuse()
	case !known:
		_ = s.finish(status.Newf(codes.Unimplemented, "unknown method %.256s", s.path), &outgoing{})
	case m.unary != nil:
		s.unary(m)
	default:
		s.streaming(m)
	}
}

// refuse rejects a request that is not a gRPC call, after it has arrived; a client other than gRPC gets the reason as text.
func (s *stream) refuse() {
	due := time.Now().Add(s.conn.server.cfg.RequestTimeout)
	for scrap := make([]byte, 1<<10); !s.early; {
		if _, err := s.readFull(scrap, due); err != nil {
			break
		}
	}
	var o outgoing
	if s.contentType == plainType {
		text := []byte(s.refusal.Message() + "\n")
		o.data, o.left = [][]byte{text}, len(text)
	}
	_ = s.finish(s.refusal, &o)
}

// done removes a call that has returned.
func (c *conn) done(s *stream) {
	s.letGo(true)
	c.server.cfg.Memory.Release(s.memory)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(s, errCallEnded)
	c.streams.remove()
	if c.streams.over() {
		c.fail(errDrained)
	}
}

// unary runs a call with one request and one response. Response and status are sent together.
func (s *stream) unary(m method) {
	reply, err := m.unary(m.service, s.ctx, s.recvOne, s.conn.server.cfg.Unary)
	if err == nil {
		err = s.reply(reply)
	}
	if err != nil {
		_ = s.finish(statusOf(err), &outgoing{})
	}
}

// recvOne receives the single request of a unary call.
func (s *stream) recvOne(m any) error {
	err := s.RecvMsg(m)
	if errors.Is(err, io.EOF) {
		return status.Error(codes.Internal, "the call has no request")
	}
	return err
}

func (s *stream) reply(m any) error {
	o, err := s.encode(m)
	if err != nil {
		return err
	}
	defer s.release(o)
	return s.finish(status.New(codes.OK, ""), o)
}

// streaming runs a call whose handler sends and receives any number of messages.
func (s *stream) streaming(m method) {
	var err error
	if intercept := s.conn.server.cfg.Stream; intercept == nil {
		err = m.stream.Handler(m.service, s)
	} else {
		info := &grpc.StreamServerInfo{FullMethod: s.path, IsClientStream: m.stream.ClientStreams, IsServerStream: m.stream.ServerStreams}
		err = intercept(m.service, s, info, m.stream.Handler)
	}
	_ = s.finish(statusOf(err), &outgoing{}) // an error means that the client is gone
}

// statusOf returns the status that a client gets for a handler's error: the error's own, that of a context's end, or UNKNOWN.
func statusOf(err error) *status.Status {
	if st, ok := status.FromError(err); ok {
		return st
	}
	return status.FromContextError(err)
}
