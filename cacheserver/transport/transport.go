// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package transport makes the gRPC servers and connections of the data plane, with their codec, limits, TLS, panic recovery and
// graceful shutdown.
package transport

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/transport/h2"
	"github.com/kubeflow/datacache/internal/handshake"
	"github.com/kubeflow/datacache/internal/redact"
)

// MaxMessage bounds a message between head and data nodes.
const MaxMessage = 1 << 30

// TLS says how connections are encrypted: by certificates that somebody else makes, or by those that each server makes from a CA of the cache.
// Its files hold PEM, and are read again when they change. The zero value means plain text.
type TLS struct {
	Cert string // the server's certificate chain
	Key  string // its private key
	CA   string // authorities for the certificates of peers; empty uses the system's roots

	Authority string   // certificate and private key of the cache's own CA, instead of the other three
	Names     []string // host names and addresses of the certificate made from it, in addition to authority.ServerName, loopback and the host's own

	// Plain says that the same port also takes plain text. TLS is then 1.3.
	Plain bool
}

// Enabled reports whether connections may be encrypted.
func (t TLS) Enabled() bool { return t.Cert != "" || t.Authority != "" }

// Implementation selects the gRPC implementation of a server. The zero value is H2.
type Implementation string

const (
	// H2 is package h2: it writes frames to the socket without copying them.
	H2 Implementation = "h2"
	// GRPC is grpc-go, the reference: the same responses with about twice the CPU time per byte.
	GRPC Implementation = "grpc"
)

// ParseImplementation parses the name of an Implementation.
func ParseImplementation(name string) (Implementation, error) {
	switch t := Implementation(name); t {
	case H2, GRPC:
		return t, nil
	}
	return "", fmt.Errorf("%q, want %s or %s", name, H2, GRPC)
}

var _ h2.Message = (*protocol.Frame)(nil)

// Server is the common interface of *grpc.Server and *h2.Server.
type Server interface {
	grpc.ServiceRegistrar
	// Serve serves on the listener until the server is stopped.
	Serve(net.Listener) error
	// GracefulStop waits for running calls to end.
	GracefulStop()
	// Stop ends them.
	Stop()
}

// Memory bounds what clients make a server hold.
type Memory = h2.Memory

// NewServer makes a gRPC server. A panic in a handler does not end the process but becomes INTERNAL. Memory held for clients is
// reserved in memory.
func NewServer(transport Implementation, t TLS, memory Memory, m *ops.Metrics, log *slog.Logger) (Server, error) {
	config, err := t.server(log)
	if err != nil {
		return nil, err
	}
	unary := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
		err = guard(ctx, info.FullMethod, m, log, func() (err error) { resp, err = handler(ctx, req); return err })
		return resp, err
	}
	stream := func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return guard(stream.Context(), info.FullMethod, m, log, func() error { return handler(srv, stream) })
	}
	failures := &handshake.Failures{Count: m.BadHandshakes.Inc, Log: log}
	if transport == GRPC {
		return newGRPC(t.credentials(config, failures.Note), unary, stream, memory, log), nil
	}
	return h2.New(h2.Config{
		Codec: NewCodec(), TLS: config, Plain: t.Plain, Peek: handshake.Peek, Unary: unary, Stream: stream, Log: log,
		Limit: limit, HandshakeFailed: failures.Note, Memory: memory, RequestTimeout: requestTimeout, SendTimeout: SendTimeout,
	}), nil
}

// LevelPanic is the level of a log line about a panic: above that of failures, which callers are told too.
const LevelPanic = slog.LevelError + 1

// guard runs one call, converts a panic to INTERNAL and counts the call by its status.
func guard(ctx context.Context, method string, m *ops.Metrics, log *slog.Logger, call func() error) (err error) {
	short := method[strings.LastIndexByte(method, '/')+1:]
	defer func() {
		if p := recover(); p != nil {
			log.Log(ctx, LevelPanic, "a call panicked", "method", short, "panic", p, "stack", string(debug.Stack()))
			err = status.Errorf(codes.Internal, "%s failed inside the server; see its log", short)
		}
		err = withoutSecrets(err)
		m.Requests.WithLabelValues(short, status.Code(err).String()).Inc()
	}()
	return call()
}

// withoutSecrets returns a call's error with credentials redacted.
func withoutSecrets(err error) error {
	if err == nil {
		return nil
	}
	s := status.Convert(err)
	if clean := redact.Text(s.Message()); clean != s.Message() {
		return status.Error(s.Code(), clean)
	}
	return err
}

// Serve serves on the listener until ctx ends, then shuts down gracefully: it accepts no new calls, sends GOAWAY to every client, and
// gives running streams the grace period before it closes them.
func Serve(ctx context.Context, server Server, listener net.Listener, grace time.Duration) error {
	drained := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(drained)
		cut := time.AfterFunc(grace, server.Stop)
		defer cut.Stop()
		server.GracefulStop()
	})
	err := server.Serve(listener)
	if !stop() {
		<-drained
		return nil
	}
	server.Stop()
	return fmt.Errorf("serve grpc on %s: %w", listener.Addr(), err)
}

// Dialer opens a connection to host:port. A nil Dialer means TCP.
type Dialer func(ctx context.Context, address string) (net.Conn, error)

// Dial makes a connection to host:port between head and data nodes. It connects on first use and detects within seconds when the
// other side is gone.
func Dial(address string, t TLS, dial Dialer) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if t.Enabled() {
		config, err := t.client()
		if err != nil {
			return nil, err
		}
		creds = credentials.NewTLS(config)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(NewCodec()), grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}),
	}
	if dial != nil {
		options = append(options, grpc.WithContextDialer(dial))
	}
	// With passthrough, each attempt to connect resolves the name. gRPC's own resolver caches a failure and waits up to 2 minutes
	// before it tries again.
	conn, err := grpc.NewClient("passthrough:///"+address, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return conn, nil
}
