// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
)

const (
	// recordBytes is the plaintext length of a full TLS record, RFC 8446 section 5.1.
	recordBytes = 16 << 10
	// batchBytes is how many bytes of records one system call writes: few calls, and the records are still in the L2 cache when the
	// kernel copies them.
	batchBytes = 256 << 10
)

// begins returns a connection from which the first byte can still be read, and whether it uses TLS.
func (c *Config) begins(raw net.Conn) (from net.Conn, secure bool, err error) {
	if c.TLS == nil || c.Peek == nil {
		return raw, c.TLS != nil, nil
	}
	from, secure, err = c.Peek(raw)
	return from, secure || !c.Plain, err
}

// tlsConn encrypts slices as full TLS records and writes many records with one system call. crypto/tls alone makes at least one
// record per Write and writes each with a separate system call.
type tlsConn struct {
	*tls.Conn
	records *recordBatch
}

func newTLSConn(raw net.Conn, config *tls.Config) *tlsConn {
	records := &recordBatch{Conn: raw}
	return &tlsConn{Conn: tls.Server(records, config), records: records}
}

// shake performs the TLS handshake, which must agree on HTTP/2.
func (c *tlsConn) shake(ctx context.Context) error {
	if err := c.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS: %w", err)
	}
	if got := c.ConnectionState().NegotiatedProtocol; got != alpn {
		return fmt.Errorf("TLS: the client agreed on protocol %q, want %q", got, alpn)
	}
	return nil
}

// writeSlices sends the slices. Slices of at least a record are encrypted in place, shorter ones are first combined.
func (c *tlsConn) writeSlices(slices [][]byte) error {
	c.records.begin()
	err := c.encrypt(slices)
	if flushErr := c.records.flush(); err == nil {
		err = flushErr
	}
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

func (c *tlsConn) encrypt(slices [][]byte) error {
	record := recordPool.Get().(*[recordBytes]byte) //nolint:forcetypeassert // the pool contains no other type
	defer recordPool.Put(record)
	n := 0 // number of bytes in record
	for _, s := range slices {
		for len(s) > 0 {
			if n == 0 && len(s) >= recordBytes {
				whole := len(s) - len(s)%recordBytes
				if _, err := c.Write(s[:whole]); err != nil {
					return err
				}
				s = s[whole:]
				continue
			}
			k := copy(record[n:], s)
			s = s[k:]
			if n += k; n == recordBytes {
				if _, err := c.Write(record[:n]); err != nil {
					return err
				}
				n = 0
			}
		}
	}
	if n == 0 {
		return nil
	}
	_, err := c.Write(record[:n])
	return err
}

var (
	recordPool = sync.Pool{New: func() any { return new([recordBytes]byte) }}
	batchPool  = sync.Pool{New: func() any { return new([batchBytes]byte) }}
)

// recordBatch is the connection below TLS. Between begin and flush it collects what is written. crypto/tls calls Write with a whole
// record at a time, also in the reader's goroutine: for alerts, and for responses to post-handshake messages.
type recordBatch struct {
	net.Conn

	mu    sync.Mutex
	batch *[batchBytes]byte // nil: writes are not collected
	n     int
}

func (b *recordBatch) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.batch = batchPool.Get().(*[batchBytes]byte) //nolint:forcetypeassert // the pool contains no other type
}

// Write implements net.Conn.
func (b *recordBatch) Write(record []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.n+len(record) > batchBytes {
		if err := b.writeLocked(); err != nil {
			return 0, err
		}
	}
	if b.batch == nil || len(record) > batchBytes {
		return b.Conn.Write(record)
	}
	b.n += copy(b.batch[b.n:], record)
	return len(record), nil
}

// flush sends the collected records and stops collecting.
func (b *recordBatch) flush() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.writeLocked()
	batchPool.Put(b.batch)
	b.batch = nil
	return err
}

func (b *recordBatch) writeLocked() error {
	if b.n == 0 {
		return nil
	}
	_, err := b.Conn.Write(b.batch[:b.n])
	b.n = 0
	return err
}
