// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/kubeflow/datacache/cacheserver/offheap"
)

// Message is one record batch in the Arrow IPC format. Its receiver calls Release exactly once, after which neither Header nor Body
// may be used.
type Message struct {
	Header  []byte   // the Message flatbuffer, without the stream's length prefix
	Body    [][]byte // the body is their concatenation
	BodyLen int      // bytes
	Rows    int
	Placed  bool // the body, of one slice, lies in the memory given to Projection.Into

	lease *lease
}

// Release releases the memory that the message points to. Further calls do nothing.
func (m Message) Release() {
	if m.lease != nil && !m.lease.done.Swap(true) {
		m.lease.drop()
	}
}

// lease is the memory that a message holds: a reference on the rows whose arenas it points into, and possibly a pooled buffer.
type lease struct {
	rows      *Rows
	allowance *offheap.Allowance // the capacity of the buffer and the list of slices are reserved in it
	buf       []byte
	listed    int64 // bytes reserved for the list of slices
	held      held
	done      atomic.Bool
}

// sliceBytes is the approximate memory that a slice of a body takes until it is sent, here and in the transport.
const sliceBytes = 128

// list reserves memory for a body's list of slices.
func (l *lease) list(slices int) error {
	if err := l.allowance.Reserve(int64(slices) * sliceBytes); err != nil {
		return err
	}
	l.listed = int64(slices) * sliceBytes
	return nil
}

func (l *lease) drop() {
	l.held.drop()
	l.allowance.Release(l.listed)
	if l.buf != nil {
		l.allowance.Release(int64(cap(l.buf)))
		l.rows.pool.put(l.buf)
	}
	l.rows.Release()
}

const (
	minClass = 15 // 32 KiB: large enough that Go aligns it to a page
	maxClass = 24 // 16 MiB; longer buffers are not pooled
)

// pool keeps buffers in size classes, which are powers of two. The zero value is ready to use; it is safe for concurrent use.
type pool struct {
	classes [maxClass + 1]sync.Pool
}

func class(n int) int {
	return max(minClass, bits.Len(uint(max(n, 1)-1)))
}

// room is the capacity of a buffer for n bytes.
func room(n int) int {
	if c := class(n); c <= maxClass {
		return 1 << c
	}
	return n
}

// get returns n bytes with arbitrary content, with the capacity room(n).
func (p *pool) get(n int) []byte {
	if c := class(n); c <= maxClass {
		if b, ok := p.classes[c].Get().(*[]byte); ok {
			return (*b)[:n]
		}
	}
	return make([]byte, n, room(n))
}

func (p *pool) put(b []byte) {
	if c := class(cap(b)); c <= maxClass {
		p.classes[c].Put(&b)
	}
}
