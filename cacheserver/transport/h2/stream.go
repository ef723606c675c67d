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
	window   atomic.Int64 // how much the peer may send
	received int64        // bytes of DATA received

	owed atomic.Int64 // bytes read and not yet returned to window; less than 0: returned before they have come

	memory int64 // reserved as long as the call runs
	began  bool  // the handler has asked for a message; used only by the receiver

	// Protected by conn.mu.
	sendable sendWindow
	remote   bool  // the peer has ended its side; only the reader sets it
	ending   bool  // the handler has returned: only the end of the stream is still sent
	closed   error // the error for senders; not nil once neither side sends any more

	slices [][]byte // of the message being sent, reused for the next one

	sending sync.Mutex // held while one message, or the end of the call, is sent
	turn    turn
	cut     bool // a message was sent partially and will not be continued; protected by sending

	mu      sync.Mutex
	header  metadata.MD // of the response, until it is sent
	trailer metadata.MD
	headed  bool   // header has been sent
	budget  Memory // for messages
	held    int64  // bytes reserved for the last received message
	over    bool   // the handler has returned
}

var (
	_ grpc.ServerStream          = (*stream)(nil)
	_ grpc.ServerTransportStream = transportStream{}
)

// leadSize is the length of the prefix of each message: a compression flag and the length.
const leadSize = 5

// Context implements grpc.ServerStream.
func (s *stream) Context() context.Context { return s.ctx }

// contextError returns why a call's context has ended, as a status.
func contextError(ctx context.Context) error { return status.FromContextError(ctx.Err()).Err() }

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

// SendMsg implements grpc.ServerStream. It returns when the kernel has accepted the whole message, or with an error; a Message is
// released in any case.
func (s *stream) SendMsg(m any) error {
	o, err := s.encode(m)
	if err != nil {
		return err
	}
	defer s.release(o)
	return s.send(o)
}

// encode prepares a message for writing. The result must be released.
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
		s.mu.Lock()
		memory, size := s.budget, int64(copies*encoded.Len())
		s.mu.Unlock()
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

// release returns a message that was written, or never will be, to its owner.
func (s *stream) release(o *outgoing) {
	if cap(s.slices) > maxSlices { // reserved only until here
		s.slices = nil
	}
	clear(s.slices)
	o.free()
}

// finish ends the call with its status, after a message in o. Concurrent sends get an error. After a partially sent message no status
// can be sent, since clients would consider the server broken: then the stream is reset, with the code that gRPC clients map to the
// status.
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

// close records that neither side sends any more, and why; the first reason is kept. conn.mu is held.
func (s *stream) close(err error) {
	delete(s.conn.streams.open, s.id)
	if s.closed == nil {
		s.closed = err
	}
}

// isCut reports whether a message was sent partially.
func (s *stream) isCut() bool {
	s.sending.Lock()
	defer s.sending.Unlock()
	return s.cut
}

// reset sends RST_STREAM instead of a status. gRPC does not have an error code for every status.
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

// send writes o, after the response's header if that has not been sent yet.
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
// message stays reserved until the next one is requested.
func (s *stream) RecvMsg(m any) error {
	s.letGo(false)
	var lead [leadSize]byte
	cfg := &s.conn.server.cfg
	first, begun := !s.began, 0
	s.began = true
	if !first { // it may begin at any time
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
	body, err := s.readMessage(m, int(size), due.Add(time.Duration(size)*time.Second/slowest))
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

// receiveError returns a handler's error for a failed read; ended is the error for the end of the client's side.
func (s *stream) receiveError(err, ended error) error {
	switch {
	case errors.Is(err, io.EOF):
		return ended
	case errors.Is(err, errLate):
		return status.Errorf(codes.DeadlineExceeded, "the request has not come whole within %s", s.conn.server.cfg.RequestTimeout)
	case s.ctx.Err() != nil:
		return contextError(s.ctx)
	}
	return err
}

// Roomy is a request that may bring the memory that it is received in.
type Roomy interface {
	// Room returns memory for a message of so many bytes, which the server writes to until RecvMsg returns; nil: the server makes some.
	Room(size int) []byte
}

// readMessage reads a message's bytes until due. Unless m brings memory, it grows with the bytes received, not with the announced length: to at
// most four times as many, so that little is copied and becomes garbage.
func (s *stream) readMessage(m any, size int, due time.Time) ([]byte, error) {
	if r, ok := m.(Roomy); ok {
		if body := r.Room(size); len(body) == size {
			_, err := s.readFull(body, due)
			return body, err
		}
	}
	var body []byte
	for done := 0; ; {
		more := min(max(3*done, firstPiece), size-done)
		if err := s.hold(int64(copies * more)); err != nil {
			return nil, err
		}
		body = append(make([]byte, 0, done+more), body...)[:done+more]
		n, err := s.readFull(body[done:], due)
		if done += n; err != nil || done == size {
			return body, err
		}
	}
}

// readFull fills p before due. It returns window to the peer for the bytes read, and in advance for those that don't fit into the stream's window:
// there is memory for them.
func (s *stream) readFull(p []byte, due time.Time) (int, error) {
	s.owed.Add(-int64(len(p))) // none is returned for bytes that arrive before the advance is given
	n := s.in.begin(p)
	if len(p)-n > defaultWindow {
		s.owed.Add(int64(n))
		s.conn.widen(s, int64(len(p)))
	} else {
		s.giveBack(len(p) + n)
	}
	return s.in.wait(s.ctx, due)
}

// giveBack returns n bytes of window to the peer, in batches.
func (s *stream) giveBack(n int) {
	// If the swap fails, the goroutine that changed owed meanwhile looks at it again.
	if owed := s.owed.Add(int64(n)); owed >= defaultWindow/2 && s.owed.CompareAndSwap(owed, 0) {
		s.conn.widen(s, owed)
	}
}

// Cancel ends the call whose context is ctx: its handler's sends and receives then fail, even one that is waiting for the client. The
// status that the handler returns is still sent. For a call of another server it does nothing.
func Cancel(ctx context.Context) {
	if s, ok := grpc.ServerTransportStreamFromContext(ctx).(transportStream); ok {
		s.cancel()
	}
}

// transportStream is the interface of a stream for unary handlers, used by grpc.SetHeader and the like.
type transportStream struct{ *stream }

// Method implements grpc.ServerTransportStream.
func (t transportStream) Method() string { return t.path }

// SetTrailer implements grpc.ServerTransportStream.
func (t transportStream) SetTrailer(md metadata.MD) error {
	t.stream.SetTrailer(md)
	return nil
}

// WaitsForNetwork reports whether more than unsent bytes that were written to the connection of the call whose context is ctx are not
// sent yet because of the network, rather than because the client doesn't read. It is false if that is not known, and for a call of
// another server.
func WaitsForNetwork(ctx context.Context, unsent int) bool {
	s, ok := grpc.ServerTransportStreamFromContext(ctx).(transportStream)
	return ok && s.conn.backlog.waitsForNetwork(s.conn.raw, unsent)
}
