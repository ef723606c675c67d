// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPacing connects to a server with one CPU's places whose listener hands out connections with another congestion
// control than Reno: what is alone goes without it, two have it, and who is left goes without again.
func TestPacing(t *testing.T) {
	t.Parallel()
	usual := pacedCongestion(t)
	r := serveAfter(t, Config{}, nil, func(s *Server) { s.places = newPlaces(placesPerCPU, soon, soon) })
	paced := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
		return socket.Control(func(fd uintptr) {
			if err := unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, usual); err != nil {
				t.Error(err)
			}
		})
	}}
	listener, err := paced.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = r.Serve(listener) }()
	r.address = listener.Addr().String()

	r.connect(t)
	r.allUse(t, 1, unpaced)
	second := r.connect(t)
	r.allUse(t, 2, usual)
	second.must(second.conn.Close())
	r.allUse(t, 1, unpaced)
}

// pacedCongestion is a congestion control other than Reno that a process may choose.
func pacedCongestion(t *testing.T) string {
	t.Helper()
	allowed, err := os.ReadFile("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
	if err != nil {
		t.Skip(err)
	}
	for name := range strings.FieldsSeq(string(allowed)) {
		if name != unpaced {
			return name
		}
	}
	t.Skip("this kernel lets a process choose nothing but Reno")
	return ""
}

// allUse waits until there are so many connections, all with the given congestion control.
func (r *running) allUse(t *testing.T, conns int, want string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d connections that use %s", conns, want), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for c := range r.conns {
			if congestion(c.raw) != want {
				return false
			}
		}
		return len(r.conns) == conns
	})
}
