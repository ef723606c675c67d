// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// stream is one call. As with grpc-go, one goroutine may send while another receives.
type stream struct {
	conn *conn
	id   uint32
	request
	ctx    context.Context
	cancel context.CancelFunc
	in     inbox

	// The reader's.
	window   atomic.Int64 // what the peer may send
	received int64        // bytes of DATA

	owed atomic.Int64 // bytes read and not yet given back to window

	memory int64 // reserved for the call as long as it runs
	began  bool  // a message was asked for; belongs to the receiver

	// Guarded by conn.mu.
	sendable sendWindow
	remote   bool  // the peer has ended its side; set by the reader alone
	ending   bool  // the handler has returned: only what ends the stream is sent
	closed   error // not nil once neither side sends any more: what a sender is told

	slices [][]byte // of the message that is being sent, for the next one to use again

	sending sync.Mutex // held over one message, or what ends the call
	turn    turn
	cut     bool // a message was sent in part and will not be continued; guarded by sending

	mu      sync.Mutex
	header  metadata.MD // of the response, until it is sent
	trailer metadata.MD
	headed  bool  // header is sent
	held    int64 // reserved for the last received message
	over    bool  // the handler has returned
}

var (
	_ grpc.ServerStream          = (*stream)(nil)
	_ grpc.ServerTransportStream = transportStream{}
)

// leadSize is the length of what comes before each message: a flag for compression and the length.
const leadSize = 5

// Context implements grpc.ServerStream.
func (s *stream) Context() context.Context { return s.ctx }

// contextError is why the call's context has ended, as a status.
func (s *stream) contextError() error { return status.FromContextError(s.ctx.Err()).Err() }

// SetHeader implements grpc.ServerStream.
func (s *stream) SetHeader(md metadata.MD) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.headed {
		return status.Error(codes.Internal, "the response's header is already sent")
	}
	s.header = metadata.Join(s.header, md)
	return nil
}

// SendHeader implements grpc.ServerStream.
func (s *stream) SendHeader(md metadata.MD) error {
	if err := s.SetHeader(md); err != nil {
		return err
	}
	return s.send(&outgoing{})
}

// SetTrailer implements grpc.ServerStream.
func (s *stream) SetTrailer(md metadata.MD) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trailer = metadata.Join(s.trailer, md)
}

// SendMsg implements grpc.ServerStream. It returns when the kernel has taken the whole message, or with the error
// that keeps it from that; a Message is released in any case.
func (s *stream) SendMsg(m any) error {
	o, err := s.encode(m)
	if err != nil {
		return err
	}
	defer s.release(o)
	return s.send(o)
}

// encode makes a message ready to be written. It must be released.
func (s *stream) encode(m any) (*outgoing, error) {
	lead := make([]byte, leadSize)
	o := &outgoing{data: append(s.slices[:0], lead), free: func() {}}
	if own, ok := m.(Message); ok {
		o.data, o.left, o.free = own.AppendSlices(o.data), own.Size(), own.Release
	} else {
		encoded, err := s.conn.server.cfg.Codec.Marshal(m)
		if err != nil {
			return nil, status.Errorf(codes.Internal, "encode the response: %v", err)
		}
		for _, b := range encoded {
			o.data = append(o.data, b.ReadOnlyData())
		}
		memory, size := s.conn.server.cfg.Memory, int64(copies*encoded.Len())
		if err := memory.Reserve(size); err != nil {
			encoded.Free()
			return nil, exhausted("no memory for the response", err)
		}
		o.left, o.free = encoded.Len(), func() { encoded.Free(); memory.Release(size) }
	}
	s.slices = o.data
	if o.left > math.MaxUint32 {
		s.release(o)
		return nil, status.Errorf(codes.ResourceExhausted, "a message of %d bytes, gRPC has room for 4 GiB", o.left)
	}
	binary.BigEndian.PutUint32(lead[1:], uint32(o.left))
	o.left += leadSize
	return o, nil
}

// release gives a message that was written, or never will be, back to its owner.
func (s *stream) release(o *outgoing) {
	clear(s.slices)
	o.free()
}

// finish ends the call with its status; a message in o goes before it. A sender that is still at work gets an error. A
// status can't follow a message that was sent in part: clients take that for a broken server. The stream is then reset,
// with the code that gRPC's clients take for the status.
func (s *stream) finish(st *status.Status, o *outgoing) error {
	c := s.conn
	c.mu.Lock()
	s.ending = true
	c.out.dismiss(s, errCallEnded)
	c.mu.Unlock()
	if s.isCut() {
		return s.reset(st.Code())
	}
	s.mu.Lock()
	o.tail = trailerFields(st, s.trailer)
	s.mu.Unlock()
	return s.send(o)
}

// close notes that neither side sends any more, for the first reason given. conn.mu is held.
func (s *stream) close(err error) {
	delete(s.conn.streams.open, s.id)
	if s.closed == nil {
		s.closed = err
	}
}

// isCut reports whether a message was sent in part.
func (s *stream) isCut() bool {
	s.sending.Lock()
	defer s.sending.Unlock()
	return s.cut
}

// reset sends RST_STREAM in place of a status. gRPC has no error code for every status.
func (s *stream) reset(status codes.Code) error {
	code := http2.ErrCodeInternal
	switch status {
	case codes.Unavailable:
		code = http2.ErrCodeRefusedStream
	case codes.Canceled, codes.DeadlineExceeded:
		code = http2.ErrCodeCancel
	case codes.ResourceExhausted:
		code = http2.ErrCodeEnhanceYourCalm
	case codes.PermissionDenied:
		code = http2.ErrCodeInadequateSecurity
	}
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.closed == nil {
		c.out.sendLocked(func(f *http2.Framer) error { return f.WriteRSTStream(s.id, code) })
		c.drop(s, errCallEnded)
	}
	return nil
}

// send writes o, after the response's header if that is not sent yet.
func (s *stream) send(o *outgoing) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.mu.Lock()
	if !s.headed {
		o.head = headerFields(s.code, s.contentType, s.header)
	}
	s.mu.Unlock()
	if o.left == 0 && o.tail != nil { // no message: gRPC's "Trailers-Only"
		o.head, o.tail = nil, append(o.head, o.tail...)
	}
	err := s.write(o)
	if err != nil && o.begun && o.left > 0 {
		s.cut = true
	}
	if o.head == nil {
		s.mu.Lock()
		s.headed = true
		s.mu.Unlock()
	}
	return err
}

// RecvMsg implements grpc.ServerStream. It returns io.EOF when the client has ended its side between two messages. The memory of a
// message stays reserved until the next one is asked for.
func (s *stream) RecvMsg(m any) error {
	s.letGo(false)
	var lead [leadSize]byte
	cfg := &s.conn.server.cfg
	first, begun := !s.began, 0
	s.began = true
	if !first { // it may begin whenever the client likes
		var err error
		if begun, err = s.readFull(lead[:1], time.Time{}); err != nil {
			return s.receiveError(err, io.EOF)
		}
	}
	due := time.Now().Add(cfg.RequestTimeout)
	if n, err := s.readFull(lead[begun:], due); err != nil {
		if n+begun == 0 {
			return s.receiveError(err, io.EOF)
		}
		return s.receiveError(err, errCutOff)
	}
	if lead[0] != 0 {
		return status.Errorf(codes.Internal, "a message with compression flag %d, and the call has no grpc-encoding", lead[0])
	}
	size := binary.BigEndian.Uint32(lead[1:])
	if limit := cfg.Limit(s.path, first); int64(size) > int64(limit) {
		return status.Errorf(codes.ResourceExhausted, "a message of %d bytes, want at most %d", size, limit)
	}
	body, err := s.readMessage(int(size), due.Add(time.Duration(size)*time.Second/slowest))
	if err != nil {
		return s.receiveError(err, errCutOff)
	}
	if err := cfg.Codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(body)}, m); err != nil {
		return status.Errorf(codes.Internal, "decode the request: %v", err)
	}
	return nil
}

// errCutOff ends a call whose client ended its side within a message.
var errCutOff = status.Error(codes.Internal, "the client ended the call within a message")

// receiveError is what a handler is told of a failed read; ended is for the end of the client's side.
func (s *stream) receiveError(err, ended error) error {
	switch {
	case errors.Is(err, io.EOF):
		return ended
	case errors.Is(err, errLate):
		return status.Errorf(codes.DeadlineExceeded, "the request has not come whole within %s", s.conn.server.cfg.RequestTimeout)
	case s.ctx.Err() != nil:
		return s.contextError()
	}
	return err
}

// readMessage reads a message's bytes until it is due. Memory grows with what has come, not with what was announced.
func (s *stream) readMessage(size int, due time.Time) ([]byte, error) {
	var body []byte
	for done := 0; ; {
		more := min(max(done, defaultWindow), size-done)
		if err := s.hold(int64(copies * more)); err != nil {
			return nil, err
		}
		body = append(body, make([]byte, more)...)
		n, err := s.readFull(body[done:], due)
		if done += n; err != nil || done == size {
			return body, err
		}
	}
}

// readFull fills p before it is due, and gives the peer window for what it takes.
func (s *stream) readFull(p []byte, due time.Time) (int, error) {
	done := 0
	for done < len(p) {
		n, err := s.in.take(s.ctx, p[done:], due)
		if err != nil {
			return done, err
		}
		done += n
		s.giveBack(n)
	}
	return done, nil
}

// giveBack lets the peer send n bytes more, told when they have added up.
func (s *stream) giveBack(n int) {
	if s.owed.Add(int64(n)) < defaultWindow/2 {
		return
	}
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.remote || s.closed != nil {
		return
	}
	if owed := s.owed.Swap(0); owed > 0 {
		s.window.Add(owed)
		c.out.sendLocked(func(f *http2.Framer) error { return f.WriteWindowUpdate(s.id, uint32(owed)) })
	}
}

// Cancel ends the context of the call that ctx is of: its handler's sends and receives then fail, also one that waits for
// the client. The status that the handler returns is still sent. In another server's call it does nothing.
func Cancel(ctx context.Context) {
	if s, ok := grpc.ServerTransportStreamFromContext(ctx).(transportStream); ok {
		s.cancel()
	}
}

// transportStream is the stream as unary handlers reach it, through grpc.SetHeader and its like.
type transportStream struct{ *stream }

// Method implements grpc.ServerTransportStream.
func (t transportStream) Method() string { return t.path }

// SetTrailer implements grpc.ServerTransportStream.
func (t transportStream) SetTrailer(md metadata.MD) error {
	t.stream.SetTrailer(md)
	return nil
}
