// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNotPacedHere connects to a server whose listener hands out connections with another congestion control.
func TestNotPacedHere(t *testing.T) {
	t.Parallel()
	allowed, err := os.ReadFile("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
	if err != nil {
		t.Skip(err)
	}
	others := slices.DeleteFunc(strings.Fields(string(allowed)), func(s string) bool { return s == "reno" })
	if len(others) == 0 {
		t.Skip("this kernel lets a process choose nothing but Reno")
	}
	r := serve(t, Config{}, nil)
	other := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
		return socket.Control(func(fd uintptr) {
			if err := unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, others[0]); err != nil {
				t.Error(err)
			}
		})
	}}
	listener, err := other.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = r.Serve(listener) }()
	r.address = listener.Addr().String()
	r.connect(t)
	socket, err := r.conn().raw.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var got string
	if readErr := socket.Control(func(fd uintptr) { got, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION) }); readErr != nil || err != nil {
		t.Fatal(readErr, err)
	}
	if got = strings.TrimRight(got, "\x00"); got != "reno" {
		t.Errorf("a connection on this machine uses %q, want reno; its listener uses %s", got, others[0])
	}
}
