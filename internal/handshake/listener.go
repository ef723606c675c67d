// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package handshake

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"
)

// Listener accepts connections of TLS and of plain text from another listener. Create it with Listen.
type Listener struct {
	net.Listener
	config   *tls.Config
	limit    time.Duration
	failures *Failures
	accepted chan accepted
	ctx      context.Context // ends when the listener is closed
	cancel   context.CancelFunc
}

type accepted struct {
	conn net.Conn
	err  error
}

// Listen returns a Listener. Connections that begin as TLS are *tls.Conn with the configuration, and their handshake is done; the others are plain
// text. limit is how long a client may take for that.
func Listen(on net.Listener, config *tls.Config, limit time.Duration, failures *Failures) *Listener {
	l := &Listener{Listener: on, config: config, limit: limit, failures: failures, accepted: make(chan accepted)}
	l.ctx, l.cancel = context.WithCancel(context.Background()) //nolint:forbidigo // connections come from other processes; Close cancels it
	go l.run()
	return l
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case a := <-l.accepted:
		return a.conn, a.err
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close closes the listener below, and connections that were not accepted yet.
func (l *Listener) Close() error {
	l.cancel()
	return l.Listener.Close()
}

// run accepts connections until the listener is closed.
func (l *Listener) run() {
	for {
		raw, err := l.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			l.pass(accepted{err: err}) // the server waits before it asks for the next one
			continue
		}
		go l.begin(raw)
	}
}

// pass gives what was accepted to Accept, and reports whether it took it.
func (l *Listener) pass(a accepted) bool {
	select {
	case l.accepted <- a:
		return true
	case <-l.ctx.Done():
		return false
	}
}

// begin passes a connection on when its handshake is done.
func (l *Listener) begin(raw net.Conn) {
	stop := context.AfterFunc(l.ctx, func() { _ = raw.Close() })
	conn, err := l.shake(raw)
	if !stop() || err != nil || !l.pass(accepted{conn: conn}) {
		_ = raw.Close()
	}
}

func (l *Listener) shake(raw net.Conn) (net.Conn, error) {
	if err := raw.SetDeadline(time.Now().Add(l.limit)); err != nil {
		return nil, err
	}
	conn, secure, err := Peek(raw)
	if err != nil {
		return nil, err
	}
	if secure {
		secured := tls.Server(conn, l.config)
		if err := secured.HandshakeContext(l.ctx); err != nil {
			l.failures.Note(raw.RemoteAddr(), err)
			return nil, err
		}
		conn = secured
	}
	return conn, raw.SetDeadline(time.Time{})
}
