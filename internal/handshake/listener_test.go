// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package handshake

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kubeflow/datacache/internal/authority"
	"github.com/kubeflow/datacache/test/kit/deadline"
)

// files is a listener whose connections record whether they were given a file to send.
type files struct {
	net.Listener
	sent chan string
}

func (f files) Accept() (net.Conn, error) {
	conn, err := f.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &fileConn{conn, f.sent}, nil
}

type fileConn struct {
	net.Conn
	sent chan string
}

func (c *fileConn) ReadFrom(from io.Reader) (int64, error) {
	text, err := io.ReadAll(from)
	c.sent <- string(text)
	return int64(len(text)), err
}

// listen returns a Listener on loopback, the count of failed handshakes, and the connections that it accepts.
func listen(t *testing.T, over func(net.Listener) net.Listener) (l *Listener, failed chan struct{}, conns chan net.Conn) {
	t.Helper()
	certificate, key, err := authority.New("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ca, err := authority.Parse(authority.Join(certificate, key))
	if err != nil {
		t.Fatal(err)
	}
	on, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	failed, conns = make(chan struct{}, 10), make(chan net.Conn, 10)
	config := &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return ca.Server(authority.Names(nil), time.Now())
	}} //nolint:gosec // the default
	l = Listen(over(on), config, time.Hour, &Failures{Count: func() { failed <- struct{}{} }, Log: slog.New(slog.DiscardHandler)})
	go func() {
		defer close(conns)
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				conns <- conn
			}
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
	return l, failed, conns
}

func dial(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	deadline.Bound(t, conn)
	return conn
}

// TestPlainText checks that a connection in plain text has its first byte, and passes a file to the connection below.
func TestPlainText(t *testing.T) {
	t.Parallel()
	sent := make(chan string, 1)
	l, _, conns := listen(t, func(on net.Listener) net.Listener { return files{on, sent} })
	if _, err := io.WriteString(dial(t, l), "GET"); err != nil {
		t.Fatal(err)
	}
	conn := deadline.Receive(t, conns, "connection")
	got := make([]byte, 3)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "GET" {
		t.Errorf("it begins with %q, %v", got, err)
	}
	if _, err := io.Copy(conn, io.LimitReader(strings.NewReader("a file"), 6)); err != nil {
		t.Error(err)
	}
	if got := deadline.Receive(t, sent, "file"); got != "a file" {
		t.Errorf("%q was sent as a file", got)
	}
}

// TestHandshakes checks that a finished handshake is passed on, an unfinished one is counted and a connection without a byte is neither, and that
// none of them keeps the others waiting.
func TestHandshakes(t *testing.T) {
	t.Parallel()
	l, failed, conns := listen(t, func(on net.Listener) net.Listener { return on })
	silent := dial(t, l)
	if _, err := io.WriteString(dial(t, l), "\x16\x03\x01\x00\x05hello"); err != nil {
		t.Fatal(err)
	}
	deadline.Receive(t, failed, "failed handshake")
	client := tls.Client(dial(t, l), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // the certificate is not what is tested
	if err := client.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if conn, ok := deadline.Receive(t, conns, "connection").(*tls.Conn); !ok || !conn.ConnectionState().HandshakeComplete {
		t.Errorf("%T is accepted, want a finished *tls.Conn", conn)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := silent.Read(make([]byte, 1)); err == nil || errors.Is(err, net.ErrClosed) {
		t.Errorf("a connection that was not accepted: %v, want that the other side closed it", err)
	}
	if _, open := <-conns; open {
		t.Error("a connection without a byte is accepted")
	}
	if len(failed) > 0 {
		t.Error("a connection without a byte counts as a failed handshake")
	}
}
