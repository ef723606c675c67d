// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

// inbox holds bytes that a stream has received and its handler has not read. One goroutine calls put, one calls take. The stream's
// window bounds its length.
type inbox struct {
	memory Memory        // memory for data is reserved here
	more   chan struct{} // buffered: receives a value after a change

	mu   sync.Mutex
	data []byte
	done error // returned after data; nil: more may arrive
	last bool  // the client ended its side: data is read before done is returned
}

func newInbox(memory Memory) inbox { return inbox{memory: memory, more: make(chan struct{}, 1)} }

// put appends a copy of data. If there is no memory for it, the inbox ends with an error.
func (b *inbox) put(data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done != nil {
		return
	}
	if err := b.memory.Reserve(int64(copies * len(data))); err != nil {
		b.endLocked(exhausted("no memory for a request", err))
		return
	}
	b.data = append(b.data, data...)
	b.notify()
}

// finish marks the end of the data: take returns what is there, then io.EOF.
func (b *inbox) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done == nil {
		b.done, b.last = io.EOF, true
		b.notify()
	}
}

// end discards the data and makes take return why.
func (b *inbox) end(why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.endLocked(why)
}

func (b *inbox) endLocked(why error) {
	if b.done == nil || b.last {
		b.done, b.last = why, false
		b.memory.Release(int64(copies * len(b.data)))
		b.data = nil
		b.notify()
	}
}

func (b *inbox) notify() {
	select {
	case b.more <- struct{}{}:
	default:
	}
}

// errLate is returned when bytes did not arrive in time.
var errLate = errors.New("the request is late")

// take moves received bytes to the front of p and returns their number. It waits for at least one byte, until due or, if due is zero,
// without a limit.
func (b *inbox) take(ctx context.Context, p []byte, due time.Time) (int, error) {
	var late <-chan time.Time // of a timer that most calls don't need
	for {
		n, err := b.poll(p)
		if n > 0 || err != nil {
			return n, err
		}
		if late == nil && !due.IsZero() {
			timer := time.NewTimer(time.Until(due))
			defer timer.Stop()
			late = timer.C
		}
		select {
		case <-b.more:
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-late:
			return 0, errLate
		}
	}
}

func (b *inbox) poll(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.data) == 0 || (b.done != nil && !b.last) {
		return 0, b.done
	}
	n := copy(p, b.data)
	b.memory.Release(int64(copies * n))
	if b.data = b.data[n:]; len(b.data) == 0 {
		b.data = nil
	}
	return n, nil
}
