// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"io"
	"net"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/test/kit/deadline"
)

// TestDrain stops a server gracefully while a call is running: the call must complete normally, and no other may begin.
func TestDrain(t *testing.T) {
	server := serve(t, Config{}, map[string]grpc.StreamHandler{"Send": send})
	conn := server.dial(t, nil)
	stream, err := conn.NewStream(t.Context(), bidi, "/t/Send")
	if err != nil {
		t.Fatal(err)
	}
	say := func(text string) {
		t.Helper()
		request, reply := raw(text), raw(nil)
		if err := errors.Join(stream.SendMsg(&request), stream.RecvMsg(&reply)); err != nil {
			t.Fatal(err)
		}
	}
	say("1")
	idle := server.connect(t) // a connection without calls ends at once
	stopped := make(chan struct{})
	go func() { server.GracefulStop(); close(stopped) }()
	if got := idle.ends(); got != http2.ErrCodeNo {
		t.Errorf("the idle connection ended with %v", got)
	}
	if err := <-server.served; err != nil {
		t.Errorf("Serve returned %v", err)
	}
	deadline.Until(t, "new calls are refused", func() bool {
		return status.Code(conn.Invoke(t.Context(), "/t/Echo", new(raw), new(raw))) == codes.Unavailable
	})
	say("100000")
	select {
	case <-stopped:
		t.Error("the server stopped while a call was running")
	default:
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(new(raw)); !errors.Is(err, io.EOF) {
		t.Errorf("the running call ended with %v", err)
	}
	<-stopped
	closed, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Serve(closed); !errors.Is(err, grpc.ErrServerStopped) {
		t.Errorf("Serve after the stop: %v", err)
	}
}

// TestStop ends running calls.
func TestStop(t *testing.T) {
	server := serve(t, Config{}, map[string]grpc.StreamHandler{"Hold": hold, "Endless": endless(new(counter))})
	conn := server.dial(t, nil)
	for _, method := range []string{"/t/Hold", "/t/Endless"} {
		stream, err := conn.NewStream(t.Context(), bidi, method)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			for err == nil {
				err = stream.RecvMsg(new(raw))
			}
			if code := status.Code(err); code != codes.Unavailable && code != codes.Canceled {
				t.Errorf("%s ended with %v", method, err)
			}
		}()
	}
	deadline.Until(t, "the client is connected", func() bool { return server.conn() != nil })
	server.conn().runs(t, 2)
	server.Stop()
	server.GracefulStop() // waits until the calls have ended
}

// TestRefusedStream opens a stream after the second GOAWAY: it must be ignored, and the running call must continue.
func TestRefusedStream(t *testing.T) {
	server := serve(t, Config{}, map[string]grpc.StreamHandler{"Hold": hold})
	s := server.connect(t)
	s.call(1, "Hold", false)
	s.must(s.WritePing(false, [8]byte{1}))
	await[*http2.PingFrame](s)
	go server.GracefulStop()
	if first := await[*http2.GoAwayFrame](s); first.LastStreamID != maxWindow {
		t.Errorf("the first GOAWAY has last stream %d", first.LastStreamID)
	}
	s.call(3, "Hold", false) // in flight while the server drains
	s.must(s.WritePing(true, await[*http2.PingFrame](s).Data))
	if second := await[*http2.GoAwayFrame](s); second.LastStreamID != 3 {
		t.Errorf("the second GOAWAY has last stream %d, want 3", second.LastStreamID)
	}
	s.call(5, "Hold", false)
	s.must(s.WriteRSTStream(1, http2.ErrCodeCancel))
	s.must(s.WriteRSTStream(3, http2.ErrCodeCancel))
	if got := s.ends(); got != http2.ErrCodeNo {
		t.Errorf("the connection ended with %v", got)
	}
}

// TestSilentClients has a client that never answers a ping: its connection must stay open while it waits for a call, and be closed
// when it is idle.
func TestSilentClients(t *testing.T) {
	release := make(chan struct{})
	server := serve(t, Config{}, map[string]grpc.StreamHandler{"Wait": func(any, grpc.ServerStream) error { <-release; return nil }})
	s := server.connect(t)
	s.call(1, "Wait", true)
	s.must(s.WritePing(false, [8]byte{1}))
	await[*http2.PingFrame](s) // no answers from here on
	c := server.conn()
	for range 5 {
		c.beat()
	}
	if ping := await[*http2.PingFrame](s); ping.IsAck() {
		t.Error("the server answers a ping twice")
	}
	close(release)
	if end := await[*http2.MetaHeadersFrame](s); !end.StreamEnded() {
		t.Error("the call did not end well")
	}
	c.runs(t, 0)
	c.beat()
	s.ends()
}

// TestNoHTTP2 has clients that use another protocol, or close the connection.
func TestNoHTTP2(t *testing.T) {
	server := serve(t, Config{}, nil)
	for _, text := range []string{"", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", http2.ClientPreface[:10], http2.ClientPreface + "\x00\x00\x00\x06\x00\x00\x00\x00\x00"} {
		s := server.connect(t)
		s.conn.Close()
		conn := server.plain(t)
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		if len(text) < len(http2.ClientPreface) {
			conn.Close()
			continue
		}
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Errorf("%.20q: %v, want the connection's end", text, err)
		}
	}
	deadline.Until(t, "every connection has gone", func() bool {
		server.mu.Lock()
		defer server.mu.Unlock()
		return len(server.conns) == 0
	})
}
