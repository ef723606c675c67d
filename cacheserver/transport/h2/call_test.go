// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/test/kit/deadline"
)

// selfSigned returns a certificate for 127.0.0.1 and a client configuration that trusts it.
func selfSigned(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
		&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
}

var bidi = &grpc.StreamDesc{StreamName: "any", ClientStreams: true, ServerStreams: true}

// send answers each request, which is a number n, with a message of n bytes in many slices.
func send(_ any, stream grpc.ServerStream) error {
	for {
		var request raw
		if err := stream.RecvMsg(&request); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		size, err := strconv.Atoi(string(request))
		if err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		var of counter
		m := of.message(slicesOf(pattern(size))...)
		if err := stream.SendMsg(m); err != nil {
			return err
		}
		if _, ok := of.balanced(); !ok {
			return errors.New("SendMsg returned and kept the message")
		}
	}
}

// pattern returns n bytes in which neighboring regions differ.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return b
}

// slicesOf cuts b into slices of growing length, with empty ones between.
func slicesOf(b []byte) (out [][]byte) {
	for n := 1; len(b) > 0; n *= 3 {
		k := min(n, len(b))
		out = append(out, b[:k], nil)
		b = b[k:]
	}
	return out
}

// TestCalls makes every kind of call with grpc-go's client, over plain TCP and TLS.
func TestCalls(t *testing.T) {
	serverTLS, clientTLS := selfSigned(t)
	tests := []struct {
		name           string
		server, client *tls.Config
	}{
		{"plain", nil, nil},
		{"tls", serverTLS, clientTLS},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := serve(t, Config{TLS: tt.server, Limit: func(string, bool) int { return 1 << 20 }}, map[string]grpc.StreamHandler{
				"Send": send, "Hold": hold, "Meta": meta, "Fail": fail,
			})
			conn := server.dial(t, tt.client)
			t.Run("unary", func(t *testing.T) { unary(t, conn) })
			t.Run("streams", func(t *testing.T) { streams(t, conn) })
			t.Run("metadata", func(t *testing.T) { metadataBothWays(t, conn, tt.server != nil) })
			t.Run("errors", func(t *testing.T) { failures(t, conn) })
		})
	}
}

func unary(t *testing.T, conn *grpc.ClientConn) {
	for _, size := range []int{0, 1, defaultFrame, defaultWindow + 1, 1 << 20} {
		request, reply := raw(pattern(size)), raw(nil)
		if err := conn.Invoke(t.Context(), "/t/Echo", &request, &reply); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if !bytes.Equal(request, reply) {
			t.Errorf("%d bytes came back as %d others", size, len(reply))
		}
	}
}

func streams(t *testing.T, conn *grpc.ClientConn) {
	stream, err := conn.NewStream(t.Context(), bidi, "/t/Send")
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, 1, 100, defaultFrame - leadSize, 1 << 20, 3<<20 + 7, 1} {
		request, reply := raw(strconv.Itoa(size)), raw(nil)
		if err := stream.SendMsg(&request); err != nil {
			t.Fatal(err)
		}
		if err := stream.RecvMsg(&reply); err != nil {
			t.Fatalf("a message of %d bytes: %v", size, err)
		}
		if !bytes.Equal(reply, pattern(size)) {
			t.Errorf("a message of %d bytes came as %d others", size, len(reply))
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(new(raw)); !errors.Is(err, io.EOF) {
		t.Errorf("after the last message: %v, want EOF", err)
	}
}

// meta sends data from the call's context as header and trailer.
func meta(_ any, stream grpc.ServerStream) error {
	in, _ := metadata.FromIncomingContext(stream.Context())
	p, _ := peer.FromContext(stream.Context())
	method, _ := grpc.Method(stream.Context())
	_, limited := stream.Context().Deadline()
	if err := stream.SetHeader(metadata.Pairs("method", method, "x-bin", in.Get("x-bin")[0], "grpc-status", "reserved")); err != nil {
		return err
	}
	if err := stream.SendHeader(metadata.Pairs("limited", strconv.FormatBool(limited), "authority", in.Get(":authority")[0])); err != nil {
		return err
	}
	stream.SetTrailer(metadata.Pairs("secure", strconv.FormatBool(p.AuthInfo != nil), "from", p.Addr.Network()))
	stream.SetTrailer(metadata.Pairs("y-bin", "\x00\xff"))
	if stream.SetHeader(nil) == nil {
		return errors.New("a header could be set after it was sent")
	}
	return nil
}

func metadataBothWays(t *testing.T, conn *grpc.ClientConn, secure bool) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	stream, err := conn.NewStream(metadata.AppendToOutgoingContext(ctx, "x-bin", "\x01\x02"), bidi, "/t/Meta")
	if err != nil {
		t.Fatal(err)
	}
	header, err := stream.Header()
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(new(raw)); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	got := metadata.Join(header, stream.Trailer())
	want := metadata.Pairs("content-type", "application/grpc+proto", "method", "/t/Meta", "x-bin", "\x01\x02", "limited", "true", "authority", conn.Target(),
		"secure", strconv.FormatBool(secure), "from", "tcp", "y-bin", "\x00\xff")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// fail returns a status with details and with text that must be encoded.
func fail(any, grpc.ServerStream) error {
	st, err := status.New(codes.FailedPrecondition, "50 % of it, in größe\n").WithDetails(&errdetails.RetryInfo{})
	if err != nil {
		return err
	}
	return st.Err()
}

func failures(t *testing.T, conn *grpc.ClientConn) {
	late, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	big, small := raw(make([]byte, 1<<20+1)), raw("x")
	tests := []struct {
		name, method string
		ctx          context.Context
		request      raw
		code         codes.Code
		message      string
	}{
		{"details", "/t/Fail", t.Context(), small, codes.FailedPrecondition, "50 % of it, in größe\n"},
		{"unknown method", "/t/Nothing", t.Context(), small, codes.Unimplemented, "unknown method /t/Nothing"},
		{"unknown service", "/u/Echo", t.Context(), small, codes.Unimplemented, "unknown method /u/Echo"},
		{"a request too large", "/t/Echo", t.Context(), big, codes.ResourceExhausted, "a message of 1048577 bytes, want at most 1048576"},
		{"an error that is no status", "/t/Send", t.Context(), small, codes.InvalidArgument, ""},
		{"deadline", "/t/Hold", late, small, codes.DeadlineExceeded, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := conn.Invoke(tt.ctx, tt.method, &tt.request, new(raw))
			st := status.Convert(err)
			if st.Code() != tt.code || (tt.message != "" && st.Message() != tt.message) {
				t.Errorf("status %v: %q, want %v: %q", st.Code(), st.Message(), tt.code, tt.message)
			}
			if tt.name == "details" && len(st.Details()) != 1 {
				t.Errorf("details %v, want one", st.Details())
			}
		})
	}
}

// TestHandlersSeeTheEnd ends calls in every way while their handlers wait.
func TestHandlersSeeTheEnd(t *testing.T) {
	tests := []struct {
		name string
		more []string
		end  func(*script)
		code codes.Code
	}{
		{"reset", nil, func(s *script) { s.must(s.WriteRSTStream(1, http2.ErrCodeCancel)) }, codes.Canceled},
		{"connection closed", nil, func(s *script) { s.conn.Close() }, codes.Canceled},
		{"violation", nil, func(s *script) { s.must(s.WriteWindowUpdate(1, 0)) }, codes.Canceled},
		{"deadline", []string{"grpc-timeout", "1m"}, func(*script) {}, codes.DeadlineExceeded},
	}
	for _, tt := range tests {
		for _, wait := range []string{"receives", "sends", "waits"} {
			t.Run(tt.name+" while it "+wait, func(t *testing.T) {
				t.Parallel()
				begun, ended := make(chan struct{}), make(chan error, 1)
				var of counter
				server := serve(t, Config{}, map[string]grpc.StreamHandler{"Wait": func(_ any, stream grpc.ServerStream) error {
					close(begun)
					err := error(nil)
					switch wait {
					case "receives":
						err = stream.RecvMsg(new(raw))
					case "sends": // blocks when the window is full, which the client never reads
						for err == nil {
							err = stream.SendMsg(of.message(make([]byte, 10000)))
						}
					}
					<-stream.Context().Done()
					if wait == "waits" {
						err = status.FromContextError(stream.Context().Err()).Err()
					}
					ended <- err
					return err
				}})
				s := server.connect(t)
				s.call(1, "Wait", false, tt.more...)
				<-begun
				tt.end(s)
				err := deadline.Receive(t, ended, "the handler to end")
				if code := status.Code(err); err == nil || (wait == "waits" && code != tt.code) {
					t.Errorf("the handler saw %v, want %v", err, tt.code)
				}
				if made, ok := of.balanced(); !ok {
					t.Errorf("%d messages made, %d released", made, of.released.Load())
				}
			})
		}
	}
}

// TestNoCalls sends HTTP requests that are not gRPC calls: they get an HTTP response.
func TestNoCalls(t *testing.T) {
	server := serve(t, Config{}, nil)
	tests := []struct {
		name   string
		fields []string
		code   int
		text   string // in the body; "" if the response is only a gRPC status
	}{
		{"a browser", []string{":method", "GET", ":scheme", "http", ":path", "/", ":authority", "a"}, http.StatusMethodNotAllowed, "want POST"},
		{"JSON", []string{":method", "POST", ":scheme", "http", ":path", "/t/Echo", ":authority", "a", "content-type", "application/json"}, http.StatusUnsupportedMediaType, "application/json"},
		{"no host", []string{":method", "POST", ":scheme", "http", ":path", "/t/Echo", "content-type", "application/grpc"}, http.StatusBadRequest, ""},
		{"a bad timeout", []string{":method", "POST", ":scheme", "http", ":path", "/t/Echo", ":authority", "a", "content-type", "application/grpc", "grpc-timeout", "1x"}, http.StatusBadRequest, ""},
		{"bad metadata", []string{":method", "POST", ":scheme", "http", ":path", "/t/Echo", ":authority", "a", "content-type", "application/grpc", "x-bin", "*"}, http.StatusBadRequest, ""},
		{"too many fields", []string{":method", "POST", ":scheme", "http", ":path", "/t/Echo", ":authority", "a", "content-type", "application/grpc",
			"a", strings.Repeat("a", maxHeaderList/2), "b", strings.Repeat("b", maxHeaderList/2)}, http.StatusRequestHeaderFieldsTooLarge, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := server.connect(t)
			block := s.fields(tt.fields...)
			first := min(len(block), defaultFrame)
			s.must(s.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:first], EndHeaders: first == len(block), EndStream: true}))
			for block = block[first:]; len(block) > 0; {
				n := min(len(block), defaultFrame)
				s.must(s.WriteContinuation(1, n == len(block), block[:n]))
				block = block[n:]
			}
			answer := await[*http2.MetaHeadersFrame](s)
			if got := answer.PseudoValue("status"); got != strconv.Itoa(tt.code) {
				t.Errorf("status %s, want %d", got, tt.code)
			}
			if tt.text == "" {
				return
			}
			if body := string(await[*http2.DataFrame](s).Data()); !strings.Contains(body, tt.text) {
				t.Errorf("body %q, want %q in it", body, tt.text)
			}
		})
	}
}

func TestParseTimeout(t *testing.T) {
	tests := map[string]time.Duration{
		"1H": time.Hour, "2M": 2 * time.Minute, "30S": 30 * time.Second, "4m": 4 * time.Millisecond, "5u": 5 * time.Microsecond,
		"6n": 6, "0n": 0, "99999999H": maxTimeout,
		"": -1, "1": -1, "S": -1, "x1S": -1, "-1S": -1, "123456789S": -1, "1s": -1,
	}
	for text, want := range tests {
		got, err := parseTimeout(text)
		if (err != nil) != (want < 0) || (err == nil && got != want) {
			t.Errorf("%q: %v, error %v, want %v", text, got, err, want)
		}
	}
}

func TestRegisterTwice(t *testing.T) {
	s := New(Config{})
	desc := grpc.ServiceDesc{ServiceName: "t", Streams: []grpc.StreamDesc{{StreamName: "A"}}}
	s.RegisterService(&desc, nil)
	defer func() {
		if recover() == nil {
			t.Error("a method was registered twice")
		}
	}()
	s.RegisterService(&desc, nil)
}

// TestCancel ends calls from outside their handlers: with the handler's status or, if a message was sent partially, by a reset with
// the corresponding code.
func TestCancel(t *testing.T) {
	for _, within := range []bool{false, true} {
		t.Run(fmt.Sprintf("within a message %t", within), func(t *testing.T) {
			t.Parallel()
			calls := make(chan context.Context, 1)
			server := serve(t, Config{}, map[string]grpc.StreamHandler{"Wait": func(_ any, stream grpc.ServerStream) error {
				calls <- stream.Context()
				message := raw(make([]byte, 2*defaultWindow)) // longer than the window, which is never increased
				if !within {
					message = raw("short")
				}
				err := stream.SendMsg(&message)
				if err == nil {
					err = stream.RecvMsg(&message)
				}
				if err == nil {
					t.Error("the call was not canceled")
				}
				return status.Error(codes.Unavailable, "ask again")
			}})
			s := server.connect(t)
			s.call(1, "Wait", false)
			for read := 0; read == 0 || within && read < defaultWindow; {
				read += len(await[*http2.DataFrame](s).Data())
			}
			Cancel(<-calls)
			if within {
				if f := await[*http2.RSTStreamFrame](s); f.ErrCode != http2.ErrCodeRefusedStream {
					t.Errorf("reset with %v, want REFUSED_STREAM", f.ErrCode)
				}
				return
			}
			fields := map[string]string{}
			for _, f := range await[*http2.MetaHeadersFrame](s).Fields {
				fields[f.Name] = f.Value
			}
			if fields["grpc-status"] != "14" || fields["grpc-message"] != "ask again" {
				t.Errorf("ended with %v, want UNAVAILABLE", fields)
			}
		})
	}
}
