// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/kubeflow/datacache/test/kit/deadline"
)

// TestClientsThatNeverRead has 200 clients open their windows and read nothing: the memory in the server's kernel must be bounded for
// each, with a short or a long round trip.
func TestClientsThatNeverRead(t *testing.T) {
	const clients = 200
	for name, near := range map[string]time.Duration{"near": time.Hour, "far": 0} {
		t.Run(name, func(t *testing.T) {
			var of counter
			server := serveAfter(t, Config{}, map[string]grpc.StreamHandler{"Endless": endless(&of)}, func(s *Server) { s.near = near })
			for range clients {
				s := server.connect(t, http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
				s.must(s.WriteWindowUpdate(0, maxWindow-defaultWindow))
				s.call(1, "Endless", true)
			}
			deadline.Until(t, "every connection is full", func() bool {
				server.mu.Lock()
				defer server.mu.Unlock()
				for c := range server.conns {
					if unsent(t, c.raw) < maxUnsent/2 {
						return false
					}
				}
				return len(server.conns) == clients
			})
			server.mu.Lock()
			defer server.mu.Unlock()
			total, most := 0, 0
			for c := range server.conns {
				n := unsent(t, c.raw)
				total, most = total+n, max(most, n)
			}
			t.Logf("%d clients that read nothing: %d KiB in send buffers, %d KiB at most", clients, total>>10, most>>10)
			// The amount of one write, and bytes in the client's kernel that are not yet acknowledged.
			if limit := maxUnsent + 256<<10; most > limit {
				t.Errorf("a connection holds %d bytes, want at most %d", most, limit)
			}
		})
	}
}

// unsent is the number of bytes in a connection's send buffer.
func unsent(t *testing.T, conn net.Conn) (n int) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestNearBuffer connects over loopback: with a short round trip the send buffer must have the fixed size, otherwise the size that
// the kernel chooses.
func TestNearBuffer(t *testing.T) {
	for name, test := range map[string]struct {
		near time.Duration
		want bool
	}{"near": {time.Hour, true}, "far": {0, false}} {
		t.Run(name, func(t *testing.T) {
			server := serveAfter(t, Config{}, nil, func(s *Server) { s.near = test.near })
			server.connect(t)
			raw, err := server.conn().raw.(*net.TCPConn).SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			var size int
			if err := raw.Control(func(fd uintptr) { size, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF) }); err != nil {
				t.Fatal(err)
			}
			if got := size == 2*nearBuffer; err != nil || got != test.want { // Linux doubles the value
				t.Errorf("SO_SNDBUF is %d (%v), set by us: %v, want %v", size, err, got, test.want)
			}
		})
	}
}
