// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
)

// Message is a message that is already encoded and is sent without copying.
type Message interface {
	// Size is the length of the encoded message in bytes.
	Size() int
	// AppendSlices appends the encoded message, in order, to a list of slices; their total length is Size.
	AppendSlices(to [][]byte) [][]byte
	// Release is called when the slices are not read any more. SendMsg calls it once, whether or not it fails.
	Release()
}

// Config configures a server. Codec and Log are required.
type Config struct {
	Codec  encoding.CodecV2             // for every message that is not a Message
	TLS    *tls.Config                  // nil: plain text (HTTP/2 with prior knowledge)
	Plain  bool                         // also accept plain text beside TLS; requires Peek
	Unary  grpc.UnaryServerInterceptor  // nil: none
	Stream grpc.StreamServerInterceptor // nil: none
	Log    *slog.Logger                 // for peers that violate the protocol
	// Limit returns the maximum length in bytes of a method's requests: of the first message and of later ones. A longer one ends its
	// call with RESOURCE_EXHAUSTED as soon as its length is known. nil: 4 MiB, as in grpc-go.
	Limit func(method string, first bool) int
	// Peek reads the first byte of a connection. It returns a connection that still has this byte, and whether the byte begins a TLS
	// handshake. A connection that sends nothing, such as a port check, then doesn't count as a failed handshake. nil: if TLS is set,
	// every connection must be TLS.
	Peek func(raw net.Conn) (from net.Conn, secure bool, err error)
	// HandshakeFailed is called for each TLS handshake that fails. nil: none.
	HandshakeFailed func(client net.Addr, err error)
	// Memory bounds the memory that clients can use in the server; nil: unlimited.
	Memory Memory
	// RequestTimeout is how long a message may take to arrive completely, from its first byte or, for a call's first message, from
	// the start of the call; long messages get more time. 0: 30 seconds.
	RequestTimeout time.Duration
	// SendTimeout closes a connection whose peer accepted no data for that long. 0: never.
	SendTimeout time.Duration
}

// Server is a gRPC server. Make it with New and register services before Serve; after that it is safe for concurrent use, except for
// RegisterService.
type Server struct {
	cfg     Config
	methods map[string]method // by full name, /service/method

	// Values that tests change.
	silence, handshake          time.Duration
	idlesASecond, resetsASecond int
	near                        time.Duration

	ctx    context.Context // parent of every call's context
	cancel context.CancelFunc

	newcomers *Newcomers

	mu        sync.Mutex
	ended     sync.Cond // signals that a connection has ended
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	shedAt    time.Time // last time
	draining  bool
	warnings  rate
}

var _ grpc.ServiceRegistrar = (*Server)(nil)

// method is one registered method; exactly one of unary and stream is set.
type method struct {
	service any
	unary   grpc.MethodHandler
	stream  *grpc.StreamDesc
}

// New returns a server without services.
func New(cfg Config) *Server {
	if cfg.Limit == nil {
		cfg.Limit = func(string, bool) int { return 4 << 20 }
	}
	if cfg.HandshakeFailed == nil {
		cfg.HandshakeFailed = func(net.Addr, error) {}
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
		cfg: cfg, methods: map[string]method{}, silence: silence, handshake: HandshakeTime, idlesASecond: maxIdle, resetsASecond: maxResets, near: nearRTT,
		listeners: map[net.Listener]struct{}{}, conns: map[*conn]struct{}{},
		warnings: rate{limit: maxWarnings}, newcomers: NewNewcomers(cfg.Memory, newMemory),
	}
	if cfg.TLS != nil {
		s.newcomers.each = newTLSMemory
	}
	s.ended.L = &s.mu
	s.ctx, s.cancel = context.WithCancel(context.Background()) //nolint:forbidigo // calls come from other processes, so their contexts start here; Stop cancels them
	return s
}

// RegisterService implements grpc.ServiceRegistrar. It panics if a method is registered twice.
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

// Serve serves on the listener, which it closes, until Stop or GracefulStop; then it returns nil. It may be called for several
// listeners. After a stop it returns grpc.ErrServerStopped.
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
			if c := s.accept(raw); c != nil {
				go s.serve(c)
			}
		case s.stopping():
			return nil
		case isTemporary(err): // out of file descriptors: existing connections continue
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

// warn logs an error of a connection, unless maxWarnings of the current second were logged: clients decide how many there are.
func (s *Server) warn(message string, raw net.Conn, err error) {
	s.mu.Lock()
	exceeded := s.warnings.exceeded(time.Now())
	s.mu.Unlock()
	if !exceeded {
		s.cfg.Log.Warn(message, "client", raw.RemoteAddr(), "error", err)
	}
}

// accept returns a connection once there are memory and a place for it, nil if there is no memory. Meanwhile the next ones wait in the kernel.
func (s *Server) accept(raw net.Conn) *conn {
	c := newConn(s, raw)
	if c.reserve(s.newcomers.each) != nil {
		_ = raw.Close()
		return nil
	}
	c.newcomer = s.newcomers.Enter(raw)
	return c
}

// serve serves a connection until it is closed and its last call has returned.
func (s *Server) serve(c *conn) {
	defer func() { s.cfg.Memory.Release(c.memory) }()
	boundBuffer(c.raw, s.near)
	s.mu.Lock()
	s.conns[c] = struct{}{}
	draining := s.draining
	s.mu.Unlock()
	if draining { // it was accepted while the listener was being closed
		_ = c.raw.Close()
	}
	c.serve()
}

// shed drains connections that are not in use. It is called often while there is no memory for another one.
func (s *Server) shed() {
	s.mu.Lock()
	if time.Since(s.shedAt) < connPoll {
		s.mu.Unlock()
		return
	}
	s.shedAt = time.Now()
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range conns {
		c.shed()
	}
}

// forget removes a connection that has ended.
func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.ended.Broadcast()
}

// GracefulStop stops accepting connections and calls, tells clients so (GOAWAY), and returns when the running calls have ended.
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

// Stop closes every connection. The contexts of running calls are canceled; Stop does not wait for them.
func (s *Server) Stop() {
	conns := s.halt()
	s.cancel()
	for _, c := range conns {
		_ = c.raw.Close()
	}
}

// halt closes the listeners and returns the open connections.
func (s *Server) halt() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	for l := range s.listeners {
		_ = l.Close()
	}
	return slices.Collect(maps.Keys(s.conns))
}
