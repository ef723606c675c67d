// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// dontPace has a connection that stays on this machine use Reno, which every kernel has and lets every process choose. There is no
// network whose capacity could be found out; BBR, the default of some systems, paces what it sends all the same, by timers, and a byte
// costs more CPU for it. Connections over a network keep what the system uses.
func dontPace(conn net.Conn) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	// A connection that is paced is slower, not wrong.
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
	})
}
