// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"context"
	"errors"
	"net"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// listener hands out connections that can hold an answer's header back until its body goes: as a packet of its own it costs
// about as much as 100 KB by sendfile do.
type listener struct{ net.Listener }

// Accept waits for a connection.
func (l listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if tcp, ok := accepted.(*net.TCPConn); ok {
		return &conn{TCPConn: tcp}, nil
	}
	return accepted, nil
}

// conn is a TCP connection whose writes may wait, in the kernel, for what comes after them. Its ReadFrom is TCPConn's,
// which is sendfile for files.
type conn struct {
	*net.TCPConn
	more atomic.Bool // whether more comes
}

// Write sends p; while more comes the kernel sends nothing but full packets.
func (c *conn) Write(p []byte) (sent int, err error) {
	if !c.more.Load() {
		return c.TCPConn.Write(p)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var sendErr error
	err = raw.Write(func(fd uintptr) bool {
		for sent < len(p) && sendErr == nil {
			var n int
			n, sendErr = unix.SendmsgN(int(fd), p[sent:], nil, nil, unix.MSG_MORE|unix.MSG_NOSIGNAL)
			sent += max(n, 0)
			if errors.Is(sendErr, unix.EINTR) {
				sendErr = nil
			}
		}
		again := errors.Is(sendErr, unix.EAGAIN)
		if again {
			sendErr = nil
		}
		return !again
	})
	return sent, errors.Join(err, sendErr)
}

// connection is the context's key for a request's connection.
type connection struct{}

// withConnection is for http.Server.ConnContext.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connection{}, c)
}

// flushBefore sends the answer's header, or holds it back if a body follows.
func (r *request) flushBefore(body int64) {
	c, ok := r.Context().Value(connection{}).(*conn)
	if !ok || body == 0 {
		return
	}
	c.more.Store(true)
	_ = r.control.Flush() // what is wrong with the connection the body meets too
	c.more.Store(false)
}
