// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// boundBuffer bounds a connection's memory in the kernel, see docs/adr/0015-send-buffers.md. If the kernel rejects an option, only
// memory or time is lost, so errors are ignored.
func boundBuffer(conn net.Conn, near time.Duration) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent)
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil && info.Rtt > 0 && time.Duration(info.Rtt)*time.Microsecond < near {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, nearBuffer)
		}
	})
}
