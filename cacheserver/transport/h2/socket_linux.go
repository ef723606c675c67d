// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// boundBuffer bounds a connection's memory in the kernel, see docs/adr/0015-send-buffers.md. If the kernel rejects an option, only
// memory or time is lost, so errors are ignored.
func boundBuffer(conn net.Conn, near time.Duration) {
	_ = withSocket(conn, func(fd int) error {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent)
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil && info.Rtt > 0 && time.Duration(info.Rtt)*time.Microsecond < near {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, nearBuffer)
		}
		return nil
	})
}

// backlog tells how much of what was written to a connection the network has not taken. The zero value is for a new connection.
type backlog struct {
	mu      sync.Mutex
	looked  time.Time
	limited uint64 // microseconds of the connection's life in which the client's receive window was the limit, when looked
}

// waitsForNetwork reports whether the send buffer has more than unsent bytes that are not acknowledged, and the network is the reason: the
// client's receive window was the limit for less than half of the time since the last call.
func (b *backlog) waitsForNetwork(conn net.Conn, unsent int) bool {
	var info *unix.TCPInfo
	if withSocket(conn, func(fd int) (err error) {
		info, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		return err
	}) != nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	limited := time.Duration(info.Rwnd_limited-b.limited) * time.Microsecond
	byClient := limited > now.Sub(b.looked)/2
	b.looked, b.limited = now, info.Rwnd_limited
	return int(info.Notsent_bytes)+int(info.Unacked)*int(info.Snd_mss) > unsent && !byClient
}

// hasUnread reports whether the peer has sent bytes that were not read from the connection yet; false if that is not known.
func hasUnread(conn net.Conn) bool {
	unread := 0
	err := withSocket(conn, func(fd int) (err error) {
		unread, err = unix.IoctlGetInt(fd, unix.TIOCINQ)
		return err
	})
	return err == nil && unread > 0
}

// withSocket calls use with the file descriptor of a connection. It returns the error of use, or the reason why it was not called.
func withSocket(conn net.Conn, use func(fd int) error) error {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return errors.ErrUnsupported
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) { err = use(int(fd)) }); e != nil {
		return e
	}
	return err
}
