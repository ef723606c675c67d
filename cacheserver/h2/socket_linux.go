// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"net"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// congestion is the name of the congestion control that a connection uses, empty where there is none to choose.
func congestion(conn net.Conn) (name string) {
	control(conn, func(fd int) {
		name, _ = unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	})
	return strings.TrimRight(name, "\x00")
}

// setCongestion changes it. A connection whose congestion control can't be chosen is slower, not wrong.
func setCongestion(conn net.Conn, name string) {
	control(conn, func(fd int) { _ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name) })
}

func control(conn net.Conn, do func(fd int)) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { do(int(fd)) }) // fails once the connection is closed
	}
}
