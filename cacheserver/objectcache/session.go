// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeflow/datacache/cacheserver/objectcache/store"
)

// sessionBuffer has room for the header of a request with a ServiceAccount's token and a long key. One that does not fit is
// not simple.
const sessionBuffer = 8 << 10

// session is one connection that direct has taken over. It is for one goroutine.
type session struct {
	direct *direct
	conn   *net.TCPConn
	raw    syscall.RawConn
	kept   time.Time // when its idle time last began to run

	in     []byte
	unread int // bytes at the beginning of in that are yet to be answered

	header []byte // used again for each answer
}

// newSession takes a hijacked connection and what net/http has read of it and not used.
func newSession(d *direct, hijacked net.Conn, reader *bufio.Reader) *session {
	unread, _ := reader.Peek(reader.Buffered()) // can't fail: it is buffered
	c := &session{direct: d, in: make([]byte, sessionBuffer), kept: time.Now()}
	switch conn := hijacked.(type) {
	case *net.TCPConn:
		c.conn = conn
	case *resumed:
		c.conn = conn.TCPConn
		unread = append(unread[:len(unread):len(unread)], conn.unread...)
	}
	c.raw, _ = c.conn.SyscallConn() // fails for a nil connection
	c.unread = copy(c.in, unread)
	return c
}

// run answers a request with what was found for it, and then what comes next. It returns the connection for net/http to go
// on with, or nil when it has closed it.
func (c *session) run(ctx context.Context, method string, f *found) *resumed {
	for {
		if err := c.answer(method, f); err != nil { // cut short of its Content-Length, so the client knows
			_ = c.conn.Close()
			return nil
		}
		if err := c.await(); err != nil { // the client is done, or has been idle too long
			_ = c.conn.Close()
			return nil
		}
		if method, f = c.next(ctx); f == nil {
			return &resumed{TCPConn: c.conn, unread: c.in[:c.unread]}
		}
	}
}

// await returns when there is something to answer.
func (c *session) await() error {
	if c.unread > 0 {
		return nil
	}
	if now := time.Now(); now.Sub(c.kept) > c.direct.server.limits.idle/16 { // not each time: it costs as much as parsing
		c.direct.keep(c)
		c.kept = now
	}
	n, err := c.conn.Read(c.in)
	c.unread = n
	return err
}

// next takes a request in and finds what it asks for; if net/http must judge it, it stays and nothing is found.
func (c *session) next(ctx context.Context) (method string, f *found) {
	r, size, ok := parseSimple(c.in[:c.unread])
	if !ok {
		return "", nil
	}
	if f = c.direct.server.open(ctx, r); f == nil {
		return "", nil
	}
	c.unread = copy(c.in, c.in[size:c.unread])
	return r.method, f
}

// open finds what a simple request asks for; nil if net/http must answer it.
func (s *Server) open(ctx context.Context, r simple) *found {
	bucket, key, no := s.admit(ctx, r.target, r.authorization)
	if no != nil {
		return nil
	}
	if _, elsewhere := s.cfg.Router.Elsewhere(bucket, key); elsewhere && r.hop == "" {
		return nil
	}
	if r.method == http.MethodHead {
		r.byRange = ""
	}
	f, no := s.find(bucket, key, r.byRange)
	if no != nil {
		return nil
	}
	return f
}

// answer sends what was found and closes it.
func (c *session) answer(method string, f *found) error {
	defer func() { _ = f.Close() }() // only read from
	metrics := c.direct.server.metrics
	metrics.hit(f.bucket)
	metrics.request(method, f.status())
	c.header = f.appendHeader(c.header[:0])
	out := sending{header: c.header, object: f.Object, at: f.first, left: f.length}
	if method == http.MethodHead {
		out.left = 0
	}
	body := out.left
	err := c.send(&out)
	metrics.sent(f.bucket, body-out.left)
	return err
}

// appendHeader appends the header of an answer with f, as net/http would write it.
func (f *found) appendHeader(h []byte) []byte {
	h = append(h, "HTTP/1.1 "...)
	h = strconv.AppendInt(h, int64(f.status()), 10)
	h = append(h, ' ')
	h = append(h, http.StatusText(f.status())...)
	h = append(h, "\r\nAccept-Ranges: bytes\r\nContent-Length: "...)
	h = strconv.AppendInt(h, f.length, 10)
	if f.partial {
		h = append(h, "\r\nContent-Range: "...)
		h = append(h, f.contentRange()...)
	}
	h = append(h, "\r\nContent-Type: application/octet-stream\r\nDate: "...)
	h = time.Now().UTC().AppendFormat(h, http.TimeFormat)
	return append(h, "\r\n\r\n"...)
}

// send sends all of out, unless it fails. Only an answer that does not fit into the socket at once gets a deadline: setting
// one costs as much as parsing.
func (c *session) send(out *sending) error {
	var failed error
	timed := false
	err := c.raw.Write(func(socket uintptr) bool {
		failed = out.push(int(socket))
		if !errors.Is(failed, unix.EAGAIN) {
			return true
		}
		if !timed {
			timed = c.conn.SetWriteDeadline(time.Now().Add(c.direct.server.limits.patience(out.left))) == nil
		}
		return false
	})
	if err != nil {
		return err
	}
	if timed {
		_ = c.conn.SetWriteDeadline(time.Time{}) // what is wrong with the connection, the next read meets too
	}
	return failed
}

// sending is what of an answer is still to be sent.
type sending struct {
	header   []byte
	object   *store.Object
	at, left int64
}

// push gives a socket what it takes. The header waits in the kernel for the body: as a packet of its own it costs about as
// much as 100 KB by sendfile do.
func (s *sending) push(socket int) error {
	for len(s.header) > 0 {
		flags := unix.MSG_NOSIGNAL
		if s.left > 0 {
			flags |= unix.MSG_MORE
		}
		n, err := unix.SendmsgN(socket, s.header, nil, nil, flags)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		s.header = s.header[max(n, 0):]
	}
	for s.left > 0 {
		n, err := s.object.SendTo(socket, s.at, s.left)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		s.at, s.left = s.at+n, s.left-n
	}
	return nil
}
