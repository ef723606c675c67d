// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
)

// Message is a message that is its own encoding and is sent from where it lies.
type Message interface {
	// Size is the length of the encoded message in bytes.
	Size() int
	// AppendSlices appends the encoded message, in order, to a list of slices; together they are Size bytes long.
	AppendSlices(to [][]byte) [][]byte
	// Release tells that the slices are not read any more. SendMsg calls it once, whether or not it fails.
	Release()
}

// Config is what a server needs. Codec and Log must be set.
type Config struct {
	Codec  encoding.CodecV2             // of every message that is no Message
	TLS    *tls.Config                  // nil: plain text (HTTP/2 with prior knowledge)
	Unary  grpc.UnaryServerInterceptor  // nil: none
	Stream grpc.StreamServerInterceptor // nil: none
	Log    *slog.Logger                 // of peers that break the protocol
	// Limit bounds the messages that come in for a method, the first one and the others, in bytes. A longer one ends its call in
	// RESOURCE_EXHAUSTED when its length is known. nil: 4 MiB, as in grpc-go.
	Limit func(method string, first bool) int
	// Memory bounds what clients can have the server hold; nil: nothing does.
	Memory Memory
	// RequestTimeout is how long a message may take to come whole, once it has begun, and a call's first one from the call's
	// begin; a long one gets more. 0: 30 seconds.
	RequestTimeout time.Duration
	// SendTimeout ends a connection that took nothing of what was written for so long. 0: never.
	SendTimeout time.Duration
}

// Server serves gRPC. Make it with New and register services before Serve; from then on every method but
// RegisterService is safe for concurrent use.
type Server struct {
	cfg     Config
	methods map[string]method // by full name, /service/method

	// What tests set otherwise.
	silence                     time.Duration
	idlesASecond, resetsASecond int
	near                        time.Duration

	ctx    context.Context // of every call
	cancel context.CancelFunc

	mu        sync.Mutex
	ended     sync.Cond // a connection has gone
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	draining  bool
}

var _ grpc.ServiceRegistrar = (*Server)(nil)

// method is one registered method; exactly one of unary and stream is set.
type method struct {
	service any
	unary   grpc.MethodHandler
	stream  *grpc.StreamDesc
}

// New makes a server without services.
func New(cfg Config) *Server {
	if cfg.Limit == nil {
		cfg.Limit = func(string, bool) int { return 4 << 20 }
	}
	if cfg.Memory == nil {
		cfg.Memory = unlimited{}
	}
	if cfg.RequestTimeout == 0 {
		cfg.RequestTimeout = 30 * time.Second
	}
	if cfg.TLS != nil {
		cfg.TLS = cfg.TLS.Clone()
		cfg.TLS.NextProtos = []string{alpn}
		cfg.TLS.DynamicRecordSizingDisabled = true
	}
	s := &Server{
		cfg: cfg, methods: map[string]method{}, silence: silence, idlesASecond: maxIdle, resetsASecond: maxResets, near: nearRTT,
		listeners: map[net.Listener]struct{}{}, conns: map[*conn]struct{}{},
	}
	s.ended.L = &s.mu
	s.ctx, s.cancel = context.WithCancel(context.Background()) //nolint:forbidigo // calls come from other processes: their contexts begin here and end with Stop
	return s
}

// RegisterService implements grpc.ServiceRegistrar. It panics when a method is registered twice.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, service any) {
	add := func(name string, m method) {
		full := "/" + desc.ServiceName + "/" + name
		if _, known := s.methods[full]; known {
			panic(fmt.Sprintf("h2: %s is registered twice", full))
		}
		m.service = service
		s.methods[full] = m
	}
	for _, m := range desc.Methods {
		add(m.MethodName, method{unary: m.Handler})
	}
	for i := range desc.Streams {
		add(desc.Streams[i].StreamName, method{stream: &desc.Streams[i]})
	}
}

// Serve answers on the listener, which it closes, until Stop or GracefulStop; then it returns nil. It may run for
// several listeners. After a stop it returns grpc.ErrServerStopped.
func (s *Server) Serve(listener net.Listener) error {
	defer func() { _ = listener.Close() }()
	if !s.listen(listener) {
		return grpc.ErrServerStopped
	}
	defer s.unlisten(listener)
	pause := minPause
	for {
		raw, err := listener.Accept()
		switch {
		case err == nil:
			pause = minPause
			go s.serve(raw)
		case s.stopping():
			return nil
		case isTemporary(err): // out of file descriptors: those who have a connection go on
			s.cfg.Log.Warn("can't accept a connection", "error", err, "retry-in", pause)
			time.Sleep(pause)
			pause = min(2*pause, maxPause)
		default:
			return fmt.Errorf("accept: %w", err)
		}
	}
}

func isTemporary(err error) bool {
	var e interface{ Temporary() bool }
	return errors.As(err, &e) && e.Temporary()
}

func (s *Server) listen(l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return false
	}
	s.listeners[l] = struct{}{}
	return true
}

func (s *Server) unlisten(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listeners, l)
}

func (s *Server) stopping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// serve serves a connection until it is closed and its last call has returned.
func (s *Server) serve(raw net.Conn) {
	memory := int64(connMemory)
	if s.cfg.TLS != nil {
		memory += tlsMemory
	}
	if err := ReserveSoon(s.cfg.Memory, memory); err != nil {
		s.cfg.Log.Warn("no memory for a connection", "client", raw.RemoteAddr(), "error", err)
		_ = raw.Close()
		return
	}
	defer s.cfg.Memory.Release(memory)
	boundBuffer(raw, s.near)
	c := newConn(s, raw)
	s.mu.Lock()
	s.conns[c] = struct{}{}
	draining := s.draining
	s.mu.Unlock()
	if draining { // it was accepted while the listener was being closed
		_ = raw.Close()
	}
	c.serve()
}

// forget lets go of a connection that has ended.
func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.ended.Broadcast()
}

// GracefulStop stops accepting connections and calls, tells clients so (GOAWAY), and returns when the running calls
// have ended.
func (s *Server) GracefulStop() {
	for _, c := range s.halt() {
		c.drain()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.conns) > 0 {
		s.ended.Wait()
	}
}

// Stop closes every connection. Running calls see their contexts end; Stop does not wait for them.
func (s *Server) Stop() {
	conns := s.halt()
	s.cancel()
	for _, c := range conns {
		_ = c.raw.Close()
	}
}

// halt closes the listeners and gives the connections that there are.
func (s *Server) halt() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	for l := range s.listeners {
		_ = l.Close()
	}
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	return conns
}
