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

// Send hands a frame to a stream of package h2's server, or of a grpc-go server that has Connections as its stats
// handler. It blocks while the stream's flow control lets nothing through. The frame is released in any case.
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

// trackedFrame is a frame on its way through grpc-go, which takes one buffer a slice and tells of each when it has let go of it.
type trackedFrame struct {
	*protocol.Frame
	conn    *connection
	encoded bool         // grpc-go has the buffers
	pending atomic.Int32 // buffers that grpc-go has not let go of, and one while they are made
}

// buffers hands the frame to grpc-go's transport without copying any but the smallest slices.
func (t *trackedFrame) buffers() mem.BufferSlice {
	t.encoded = true
	parts := t.AppendSlices(nil)
	out := make(mem.BufferSlice, 0, len(parts))
	out = append(out, mem.SliceBuffer(parts[0])) // the prefix is garbage collected
	t.pending.Store(1)
	for i := range parts[1:] {
		body := &parts[1+i]
		if mem.IsBelowBufferPoolingThreshold(cap(*body)) {
			// The transport would not tell when it lets go of so small a buffer.
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

// Release releases the frame and takes it from those that the connection holds.
func (t *trackedFrame) Release() {
	t.conn.forget(t)
	t.Frame.Release()
}

// frameReturn is the buffer pool to which the transport gives a frame's body slices back.
type frameReturn struct{ frame *trackedFrame }

// Get is never called: the pool only takes back.
func (r frameReturn) Get(length int) *[]byte {
	b := make([]byte, length)
	return &b
}

// Put counts a slice that the transport is done with.
func (r frameReturn) Put(*[]byte) { r.frame.done() }

// Connections is the stats handler that ends the life of frames with their connection. grpc-go drops what is
// queued on a connection that breaks without freeing it (internal/transport.loopyWriter); its ConnEnd event
// comes after the writer has ended, so from then on nobody reads those frames.
type Connections struct{}

var _ stats.Handler = Connections{}

type connectionKey struct{}

// connection knows the frames that a transport connection has not let go of.
type connection struct {
	mu    sync.Mutex
	held  map[*trackedFrame]struct{}
	ended bool
}

// hold adds a frame, unless the connection has ended.
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

// end frees every frame that is still held.
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
