// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// Send hands a frame to a stream of package h2's server, or of a grpc-go server that has Connections as its stats
// handler. It blocks while the stream's flow control lets nothing through. The frame is released in any case, see Frame.
func Send(stream grpc.ServerStream, f *Frame) error {
	if c, ok := stream.Context().Value(connectionKey{}).(*connection); ok && !c.hold(f) {
		f.Release()
		return status.Error(codes.Unavailable, "the connection has ended")
	}
	err := stream.SendMsg(f)
	if err != nil && !f.sent {
		f.Release()
	}
	return err
}

// Connections is the stats handler that ends the life of frames with their connection. grpc-go drops what is
// queued on a connection that breaks without freeing it (internal/transport.loopyWriter); its ConnEnd event
// comes after the writer has ended, so from then on nobody reads those frames.
type Connections struct{}

var _ stats.Handler = Connections{}

type connectionKey struct{}

// connection knows the frames that a transport connection has not let go of.
type connection struct {
	mu    sync.Mutex
	held  map[*Frame]struct{}
	ended bool
}

// hold adds a frame, unless the connection has ended.
func (c *connection) hold(f *Frame) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	f.conn = c
	c.held[f] = struct{}{}
	return true
}

func (c *connection) forget(f *Frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, f)
}

// end frees every frame that is still held.
func (c *connection) end() {
	c.mu.Lock()
	c.ended = true
	left := make([]*Frame, 0, len(c.held))
	for f := range c.held {
		left = append(left, f)
	}
	c.mu.Unlock()
	for _, f := range left {
		f.Release()
	}
}

// TagConn implements stats.Handler.
func (Connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, connectionKey{}, &connection{held: map[*Frame]struct{}{}})
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
