// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package handshake tells TLS from plain text on a port that takes both, and reports TLS handshakes that fail.
package handshake

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"
)

// handshakeByte begins a TLS record with a handshake message, and so a TLS connection. HTTP begins with a letter.
const handshakeByte = 0x16

// Peek reads the first byte of a connection. It returns the connection with this byte still to be read, and whether TLS begins with it.
func Peek(raw net.Conn) (from net.Conn, secure bool, err error) {
	first := make([]byte, 1)
	if _, err := io.ReadFull(raw, first); err != nil {
		return nil, false, fmt.Errorf("first byte: %w", err)
	}
	return &peeked{Conn: raw, first: first}, first[0] == handshakeByte, nil
}

// peeked is a connection whose first byte was read before. Only one goroutine may read it.
type peeked struct {
	net.Conn
	first []byte // empty once it was read again
}

// Read implements net.Conn.
func (p *peeked) Read(to []byte) (int, error) {
	if len(p.first) == 0 || len(to) == 0 {
		return p.Conn.Read(to)
	}
	n := copy(to, p.first)
	p.first = p.first[n:]
	return n, nil
}

// NetConn returns the connection below, as of tls.Conn.
func (p *peeked) NetConn() net.Conn { return p.Conn }

// ReadFrom implements io.ReaderFrom: a connection that sends files by sendfile still does.
func (p *peeked) ReadFrom(from io.Reader) (int64, error) {
	if to, ok := p.Conn.(io.ReaderFrom); ok {
		return to.ReadFrom(from)
	}
	return io.Copy(struct{ io.Writer }{p.Conn}, from)
}

// CloseWrite ends what is sent, if the connection below can; package http does so before it closes a connection.
func (p *peeked) CloseWrite() error {
	if to, ok := p.Conn.(interface{ CloseWrite() error }); ok {
		return to.CloseWrite()
	}
	return nil
}

// logEvery is the minimum time between two lines of the log: clients decide how many handshakes fail.
const logEvery = time.Second

// Failures counts and logs TLS handshakes that failed. Set the exported fields; it may be shared.
type Failures struct {
	Count func()
	Log   *slog.Logger

	mu   sync.Mutex
	said time.Time // when the last line was logged
}

// Note records that a client's handshake failed.
func (f *Failures) Note(client net.Addr, err error) {
	f.Count()
	f.mu.Lock()
	now := time.Now()
	soon := now.Sub(f.said) < logEvery
	if !soon {
		f.said = now
	}
	f.mu.Unlock()
	if !soon {
		f.Log.Warn("a client's TLS handshake failed", "client", client, "error", err)
	}
}
