// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"

	"github.com/kubeflow/datacache/test/kit/deadline"
)

// raw is a message that is already encoded.
type raw []byte

// Room returns r's own memory, if it is enough.
func (r *raw) Room(size int) []byte {
	if size > cap(*r) {
		return nil
	}
	return (*r)[:size]
}

// rawCodec passes raw messages.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*raw)
	if !ok {
		return nil, errors.New("not raw")
	}
	return mem.BufferSlice{mem.SliceBuffer(*m)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if len(data) == 1 {
		if only, ok := data[0].(mem.SliceBuffer); ok {
			*v.(*raw) = raw(only)
			return nil
		}
	}
	*v.(*raw) = data.Materialize()
	return nil
}

// counter makes messages and counts how many were made and released.
type counter struct{ made, released atomic.Int64 }

// owned is a Message of a counter.
type owned struct {
	slices [][]byte
	of     *counter
}

func (c *counter) message(slices ...[]byte) *owned {
	c.made.Add(1)
	return &owned{slices, c}
}

func (m *owned) Size() int                         { return len(bytes.Join(m.slices, nil)) }
func (m *owned) AppendSlices(to [][]byte) [][]byte { return append(to, m.slices...) }
func (m *owned) Release()                          { m.of.released.Add(1) }
func (c *counter) balanced() (made int64, balanced bool) {
	return c.made.Load(), c.made.Load() == c.released.Load()
}

// running is a server under test.
type running struct {
	*Server
	address string
	served  chan error
}

// serve starts a server whose service /t/ has the given streaming methods and the unary method Echo.
func serve(t testing.TB, cfg Config, methods map[string]grpc.StreamHandler) *running {
	t.Helper()
	return serveAfter(t, cfg, methods, func(*Server) {})
}

// serveAfter is serve with a function that changes the server before it starts serving.
func serveAfter(t testing.TB, cfg Config, methods map[string]grpc.StreamHandler, change func(*Server)) *running {
	t.Helper()
	cfg.Codec, cfg.Log = rawCodec{}, slog.New(slog.DiscardHandler)
	s := New(cfg)
	change(s)
	desc := grpc.ServiceDesc{ServiceName: "t", Methods: []grpc.MethodDesc{{MethodName: "Echo", Handler: echo}}}
	for name, handler := range methods {
		desc.Streams = append(desc.Streams, grpc.StreamDesc{StreamName: name, Handler: handler, ServerStreams: true, ClientStreams: true})
	}
	s.RegisterService(&desc, nil)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &running{s, listener.Addr().String(), make(chan error, 1)}
	go func() { r.served <- s.Serve(listener) }()
	t.Cleanup(s.Stop)
	return r
}

// echo returns its request.
func echo(_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) { //nolint:revive // parameters as in grpc.MethodHandler
	var request raw
	if err := decode(&request); err != nil {
		return nil, err
	}
	handler := func(context.Context, any) (any, error) { return &request, nil }
	if intercept == nil {
		return handler(ctx, &request)
	}
	return intercept(ctx, &request, &grpc.UnaryServerInfo{FullMethod: "/t/Echo"}, handler)
}

// hold waits for the end of the call's context.
func hold(_ any, stream grpc.ServerStream) error {
	<-stream.Context().Done()
	return stream.Context().Err()
}

// conn returns the server's only connection, nil if it has none.
func (r *running) conn() (only *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for only = range r.conns {
	}
	return only
}

// runs waits until the connection has n running calls.
func (c *conn) runs(t *testing.T, n int) {
	t.Helper()
	deadline.Until(t, "calls are running as expected", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.streams.running == n
	})
}

// dial connects grpc-go's client.
func (r *running) dial(t *testing.T, config *tls.Config) *grpc.ClientConn {
	t.Helper()
	creds := insecure.NewCredentials()
	if config != nil {
		creds = credentials.NewTLS(config)
	}
	conn, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(creds), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// script is a client that sends single frames.
type script struct {
	*http2.Framer
	t     testing.TB
	conn  net.Conn
	block bytes.Buffer
	hpack *hpack.Encoder
}

// plain opens a connection without sending anything.
func (r *running) plain(t testing.TB) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	deadline.Bound(t, conn)
	return conn
}

// connect opens a connection with the given settings, and reads the server's.
func (r *running) connect(t testing.TB, settings ...http2.Setting) *script {
	t.Helper()
	conn := r.plain(t)
	s := &script{Framer: http2.NewFramer(conn, conn), t: t, conn: conn}
	s.hpack = hpack.NewEncoder(&s.block)
	s.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	s.AllowIllegalWrites = true
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	s.must(s.WriteSettings(settings...))
	await[*http2.SettingsFrame](s)
	return s
}

func (s *script) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// await reads up to the next frame of a type.
func await[F http2.Frame](s *script) F {
	s.t.Helper()
	for {
		frame, err := s.ReadFrame()
		if err != nil {
			s.t.Fatalf("waiting for %T: %v", *new(F), err)
		}
		if f, ok := frame.(F); ok {
			return f
		}
	}
}

// fields encodes a header block of name, value pairs.
func (s *script) fields(pairs ...string) []byte {
	s.block.Reset()
	for i := 0; i < len(pairs); i += 2 {
		s.must(s.hpack.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]}))
	}
	return bytes.Clone(s.block.Bytes())
}

// call opens a stream for a method of the service; more are additional header fields.
func (s *script) call(stream uint32, method string, end bool, more ...string) {
	s.t.Helper()
	pairs := append([]string{":method", "POST", ":scheme", "http", ":path", "/t/" + method, ":authority", "test", "content-type", "application/grpc", "te", "trailers"}, more...)
	s.must(s.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: s.fields(pairs...), EndHeaders: true, EndStream: end}))
}

// ends reads until the server closes the connection, and returns the code of the last GOAWAY.
func (s *script) ends() http2.ErrCode {
	s.t.Helper()
	const none = http2.ErrCode(1 << 31)
	code := none
	for {
		frame, err := s.ReadFrame()
		// A client that still sends after the last GOAWAY may get a connection reset.
		if errors.Is(err, io.EOF) || (err != nil && code != none) {
			return code
		}
		if err != nil {
			s.t.Fatalf("waiting for the end: %v", err)
		}
		if f, ok := frame.(*http2.GoAwayFrame); ok {
			code = f.ErrCode
		}
	}
}
