// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package budget bounds the memory that requests of the object cache and of mirrors take together.
package budget

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// ErrFull says that a request got no memory. Servers answer it with 503.
var ErrFull = errors.New("no memory for this request now: other requests have it (--memory-limit)")

// patience is how long a request waits for memory.
const patience = 5 * time.Second

// Budget is a number of bytes that requests share. Create it with New; it may be shared. A nil Budget has no limit.
type Budget struct {
	limit       int64
	free        *semaphore.Weighted
	used        atomic.Int64
	connections *Budget // of Listen: clients that send nothing must not take what requests need
	large       *Budget // of Large: who takes little must not wait for them
}

// New returns a Budget of limit bytes: a third is for connections and headers, and a third for requests that take much at once.
func New(limit int64) *Budget {
	b := newBudget(limit / 3)
	b.connections, b.large = newBudget(limit/3), newBudget(limit/3)
	return b
}

// Large is the part for requests that take more than a few buffers.
func (b *Budget) Large() *Budget {
	if b == nil {
		return nil
	}
	return b.large
}

func newBudget(limit int64) *Budget {
	return &Budget{limit: limit, free: semaphore.NewWeighted(limit)}
}

// Limit is the number of bytes; 0: no limit.
func (b *Budget) Limit() int64 {
	if b == nil {
		return 0
	}
	return b.limit + b.connections.limit + b.large.limit
}

// Used is the number of bytes that are taken.
func (b *Budget) Used() int64 {
	if b == nil {
		return 0
	}
	return b.used.Load() + b.connections.used.Load() + b.large.used.Load()
}

// Take takes n bytes, which the caller returns with Put. It waits for them for a while, and then returns ErrFull.
func (b *Budget) Take(ctx context.Context, n int64) error {
	if b == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, ErrFull)
	defer cancel()
	if n > b.limit {
		return ErrFull
	}
	if err := b.free.Acquire(ctx, n); err != nil {
		return context.Cause(ctx)
	}
	b.used.Add(n)
	return nil
}

// tryTake takes n bytes if they are free.
func (b *Budget) tryTake(n int64) bool {
	if b == nil {
		return true
	}
	ok := b.free.TryAcquire(n)
	if ok {
		b.used.Add(n)
	}
	return ok
}

// Put returns n bytes.
func (b *Budget) Put(n int64) {
	if b == nil || n == 0 {
		return
	}
	b.used.Add(-n)
	b.free.Release(n)
}

// BufferSize is the length of a Buffer: large, to reduce the number of system calls.
const BufferSize = 256 << 10

// Buffer is memory for the copying of a body. The zero value can't be used.
type Buffer struct {
	Bytes []byte
	from  *Budget
	more  int64
}

var buffers = sync.Pool{New: func() any { b := make([]byte, BufferSize); return &b }}

// Buffer takes a Buffer, and more bytes for what the caller needs beside it. The caller frees it.
func (b *Budget) Buffer(ctx context.Context, more int64) (*Buffer, error) {
	if err := b.Take(ctx, BufferSize+more); err != nil {
		return nil, err
	}
	return &Buffer{Bytes: *buffers.Get().(*[]byte), from: b, more: more}, nil //nolint:forcetypeassert // the pool contains no other type
}

// Free returns the buffer.
func (f *Buffer) Free() {
	buffers.Put(&f.Bytes)
	f.from.Put(BufferSize + f.more)
}
