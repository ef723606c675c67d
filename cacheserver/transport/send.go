// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol"
)

// Send sends a frame on a stream of package h2's server, or of a grpc-go server that has Connections as its stats handler. It blocks
// while flow control does not let the stream send. It releases the frame in any case.
func Send(stream grpc.ServerStream, f *protocol.Frame) error {
	c, ok := stream.Context().Value(connectionKey{}).(*connection)
	if !ok {
		err := stream.SendMsg(f)
		if err != nil {
			f.Release()
		}
		return err
	}
	t := &trackedFrame{Frame: f, conn: c}
	if !c.hold(t) {
		f.Release()
		return status.Error(codes.Unavailable, "the connection has ended")
	}
	err := stream.SendMsg(t)
	if err != nil && !t.encoded {
		t.Release()
	}
	return err
}

// trackedFrame is a frame that grpc-go is sending. grpc-go takes one buffer per slice and frees each when it has been sent.
type trackedFrame struct {
	*protocol.Frame
	conn    *connection
	encoded bool         // grpc-go has the buffers
	pending atomic.Int32 // number of buffers that grpc-go has not freed, plus one while they are being made
}

// buffers returns the buffers for grpc-go's transport, copying only the smallest slices.
func (t *trackedFrame) buffers() mem.BufferSlice {
	t.encoded = true
	parts := t.AppendSlices(nil)
	out := make(mem.BufferSlice, 0, len(parts))
	out = append(out, mem.SliceBuffer(parts[0])) // the prefix is garbage collected
	t.pending.Store(1)
	for i := range parts[1:] {
		body := &parts[1+i]
		if mem.IsBelowBufferPoolingThreshold(cap(*body)) {
			// grpc-go does not free buffers that are this small, so copy.
			out = append(out, mem.SliceBuffer(bytes.Clone(*body)))
			continue
		}
		t.pending.Add(1)
		out = append(out, mem.NewBuffer(body, frameReturn{t}))
	}
	t.done()
	return out
}

func (t *trackedFrame) done() {
	if t.pending.Add(-1) == 0 {
		t.Release()
	}
}

// Release releases the frame and removes it from the connection's unsent frames.
func (t *trackedFrame) Release() {
	t.conn.forget(t)
	t.Frame.Release()
}

// frameReturn is the buffer pool to which the transport returns a frame's body slices.
type frameReturn struct{ frame *trackedFrame }

// Get is never called: the pool only takes buffers back.
func (r frameReturn) Get(length int) *[]byte {
	b := make([]byte, length)
	return &b
}

// Put counts a slice that the transport has sent.
func (r frameReturn) Put(*[]byte) { r.frame.done() }

// Connections is a stats handler that releases the frames of a connection when it ends. When a connection breaks, grpc-go drops
// queued buffers without freeing them (internal/transport.loopyWriter). The ConnEnd event comes after the writer has ended, so from
// then on nothing reads those frames.
type Connections struct{}

var _ stats.Handler = Connections{}

type connectionKey struct{}

// connection tracks the frames that a transport connection has not sent completely.
type connection struct {
	mu    sync.Mutex
	held  map[*trackedFrame]struct{}
	ended bool
}

// hold adds a frame; it returns false if the connection has ended.
func (c *connection) hold(t *trackedFrame) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	c.held[t] = struct{}{}
	return true
}

func (c *connection) forget(t *trackedFrame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, t)
}

// end releases every frame that is still held.
func (c *connection) end() {
	c.mu.Lock()
	c.ended = true
	left := slices.Collect(maps.Keys(c.held))
	c.mu.Unlock()
	for _, t := range left {
		t.Release()
	}
}

// TagConn implements stats.Handler.
func (Connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, connectionKey{}, &connection{held: map[*trackedFrame]struct{}{}})
}

// HandleConn implements stats.Handler.
func (Connections) HandleConn(ctx context.Context, event stats.ConnStats) {
	if _, ok := event.(*stats.ConnEnd); !ok {
		return
	}
	if c, ok := ctx.Value(connectionKey{}).(*connection); ok {
		c.end()
	}
}

// TagRPC implements stats.Handler.
func (Connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (Connections) HandleRPC(context.Context, stats.RPCStats) {}
