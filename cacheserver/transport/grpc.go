// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/kubeflow/datacache/cacheserver/transport/h2"
)

const (
	// writeBuffer is the size of grpc-go's write buffer for HTTP/2 frames of 16 KiB; 128 KiB took the least CPU time per byte.
	writeBuffer = 128 << 10
	// connMemory and callMemory are the approximate memory of a connection and of a call in grpc-go, without the messages received.
	connMemory, callMemory = 256 << 10, 32 << 10
	// newMemory is the approximate memory of a connection in the middle of its handshake.
	newMemory = 32 << 10
	// maxPartial is the maximum number of calls whose first message has not arrived completely. Each may hold MaxRows bytes, since
	// grpc-go has a single limit for all methods. At the maximum, a new call replaces the oldest one that is older than
	// minPartialAge.
	maxPartial    = 8
	minPartialAge = time.Second
)

// grpcServer is a grpc-go server that enforces the limits of package h2's server as far as grpc-go's interface allows.
type grpcServer struct {
	*grpc.Server
	memory Memory
	log    *slog.Logger
}

func newGRPC(creds credentials.TransportCredentials, unary grpc.UnaryServerInterceptor, stream grpc.StreamServerInterceptor, memory Memory, log *slog.Logger) *grpcServer {
	partial := &partialCalls{memory: memory}
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(NewCodec()),
		grpc.StatsHandler(partial),
		grpc.InTapHandle(partial.admit),
		grpc.WriteBufferSize(writeBuffer),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(MaxRows),
		grpc.MaxHeaderListSize(64 << 10),
		grpc.ConnectionTimeout(h2.HandshakeTime),
		grpc.Creds(creds),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(unary),
		grpc.ChainStreamInterceptor(stream, inWords),
	}
	return &grpcServer{Server: grpc.NewServer(options...), memory: memory, log: log}
}

// inWords replaces the error of a call that was ended because its first message did not arrive.
func inWords(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	err := handler(srv, stream)
	if p, ok := stream.Context().Value(partialKey{}).(*partialCall); ok && p.isEnded() {
		return status.Error(codes.DeadlineExceeded, "the request has not come whole in time")
	}
	return err
}

// Serve implements Server.
func (s *grpcServer) Serve(l net.Listener) error {
	return s.Server.Serve(&boundedListener{Listener: l, memory: s.memory, newcomers: h2.NewNewcomers(s.memory, newMemory), log: s.log})
}

// partialCalls tracks the calls whose first message has not arrived completely, to end those that are late or take too much memory.
type partialCalls struct {
	Connections
	memory Memory

	mu    sync.Mutex
	calls []*partialCall // oldest first
}

// partialCall is a call whose first message has not arrived completely.
type partialCall struct {
	began  time.Time
	cancel context.CancelFunc
	timer  *time.Timer

	mu    sync.Mutex
	ended bool // because its message was late, or to make room for another call
}

type partialKey struct{}

// end ends a call whose message is late.
func (p *partialCall) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	p.cancel()
}

func (p *partialCall) isEnded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

var _ stats.Handler = (*partialCalls)(nil)

// admit is the tap handler of every call. It runs in the goroutine that reads the call's connection, and blocks it.
func (c *partialCalls) admit(ctx context.Context, info *tap.Info) (context.Context, error) {
	memory := int64(callMemory)
	for name, values := range info.Header {
		for _, v := range values {
			memory += int64(len(name) + len(v) + 32)
		}
	}
	if err := c.memory.Reserve(memory); err != nil {
		return ctx, status.Errorf(codes.ResourceExhausted, "no memory for another call: %v", err)
	}
	context.AfterFunc(ctx, func() { c.memory.Release(memory) })
	ctx, cancel := context.WithCancel(ctx)
	p := &partialCall{began: time.Now(), cancel: cancel}
	p.timer = time.AfterFunc(requestTimeout, p.end)
	ctx = context.WithValue(context.WithValue(ctx, cancelKey{}, cancel), partialKey{}, p)
	for !c.add(p) {
		select {
		case <-ctx.Done():
			cancel()
			return ctx, status.FromContextError(ctx.Err()).Err()
		case <-time.After(minPartialAge / 100):
		}
	}
	context.AfterFunc(ctx, func() { c.forget(p) })
	return ctx, nil
}

// add adds a call if there are fewer than maxPartial, or in place of the oldest one.
func (c *partialCalls) add(p *partialCall) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.calls) >= maxPartial {
		oldest := c.calls[0]
		if time.Since(oldest.began) < minPartialAge {
			return false
		}
		c.calls = slices.Delete(c.calls, 0, 1)
		oldest.end()
	}
	p.began = time.Now()
	c.calls = append(c.calls, p)
	return true
}

// forget removes a call whose message has arrived, or that has ended.
func (c *partialCalls) forget(p *partialCall) {
	p.timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.calls, p); i >= 0 {
		c.calls = slices.Delete(c.calls, i, i+1)
	}
}

// HandleRPC implements stats.Handler.
func (c *partialCalls) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if _, ok := event.(*stats.InPayload); !ok {
		return
	}
	if p, ok := ctx.Value(partialKey{}).(*partialCall); ok {
		c.forget(p)
	}
}

// boundedListener accepts connections only while there are a place among the newcomers and memory for them.
type boundedListener struct {
	net.Listener
	memory    Memory
	newcomers *h2.Newcomers
	log       *slog.Logger
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &boundedConn{Conn: conn, of: l}
		if c.reserve(newMemory) != nil {
			_ = conn.Close()
			continue
		}
		c.newcomer = l.newcomers.Enter(conn)
		c.Conn = c.newcomer
		return c, nil
	}
}

// boundedConn is a connection whose writes fail when the client reads nothing for SendTimeout.
type boundedConn struct {
	net.Conn
	of       *boundedListener
	newcomer *h2.Newcomer // until its handshake is done: grpc-go does not say when it makes a call

	mu     sync.Mutex
	memory int64 // reserved as long as the connection is open
	closed bool
}

// admit makes a newcomer a connection that stays: it waits for the memory of one.
func (c *boundedConn) admit() error {
	c.newcomer.Call()
	return c.reserve(connMemory - newMemory)
}

// reserve reserves n more bytes for the connection, once there are so many.
func (c *boundedConn) reserve(n int64) error {
	if err := h2.ConnectSoon(c.of.memory, n, func() bool { return true }); err != nil {
		c.of.log.Warn("no memory for a connection", "client", c.RemoteAddr(), "error", err)
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		c.of.memory.Release(n)
		return net.ErrClosed
	}
	c.memory += n
	return nil
}

// Write implements net.Conn.
func (c *boundedConn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(SendTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	c.newcomer.Leave()
	c.mu.Lock()
	c.closed = true
	c.of.memory.Release(c.memory)
	c.memory = 0
	c.mu.Unlock()
	return c.Conn.Close()
}
