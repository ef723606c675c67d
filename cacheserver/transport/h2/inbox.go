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

// inbox passes the bytes that a stream has received to its handler, and holds those that are not wanted yet. One goroutine calls put, one
// begin and wait. The stream's window bounds its length.
type inbox struct {
	memory Memory        // memory for data is reserved here
	more   chan struct{} // of capacity 1: put and end send a value to wake wait

	mu   sync.Mutex
	want []byte // the buffer passed to begin: put writes there until it is full
	got  int    // number of bytes in want
	data []byte // received bytes that did not fit into want
	done error  // returned after data; nil: more may arrive
	last bool   // done is io.EOF, by the client: wait returns data before it
}

func newInbox(memory Memory) inbox { return inbox{memory: memory, more: make(chan struct{}, 1)} }

// put copies data to where it is wanted, as far as there is room, so that a message being received takes no memory besides its own, and
// returns how many bytes that were. It keeps a copy of the rest; if there is no memory for it, the inbox ends with an error.
func (b *inbox) put(data []byte) (wanted int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done != nil {
		return 0
	}
	if b.got < len(b.want) {
		wanted = copy(b.want[b.got:], data)
		data = data[wanted:]
		if b.got += wanted; b.got == len(b.want) {
			b.notify()
		}
	}
	if len(data) == 0 {
		return wanted
	}
	if err := reserve(b.memory, int64(copies*len(b.data)), int64(copies*len(data))); err != nil {
		b.endLocked(exhausted("no memory for a request", err))
		return wanted
	}
	b.data = append(b.data, data...)
	return wanted
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

// trust reserves no memory from now on.
func (b *inbox) trust() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.memory.Release(int64(copies * len(b.data)))
	b.memory = unlimited{}
}

func (b *inbox) notify() {
	select {
	case b.more <- struct{}{}:
	default:
	}
}

// errLate is returned when bytes did not arrive in time.
var errLate = errors.New("the request is late")

// begin moves received bytes to the front of p and returns their number. What comes until wait returns goes to the rest of p.
func (b *inbox) begin(p []byte) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done != nil && !b.last {
		return 0
	}
	n := copy(p, b.data)
	b.memory.Release(int64(copies * n))
	if b.data = b.data[n:]; len(b.data) == 0 {
		b.data = nil
	}
	b.want, b.got = p, n
	return n
}

// wait waits until the buffer passed to begin is full, until due or, if due is zero, without a limit. It returns the number of bytes there, and
// an error if there are fewer than were wanted. Nothing is written to the buffer after that.
func (b *inbox) wait(ctx context.Context, due time.Time) (int, error) {
	var late <-chan time.Time // of a timer that most calls don't need
	for failed := error(nil); ; {
		if n, over, err := b.poll(failed); over {
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
			failed = ctx.Err()
		case <-late:
			failed = errLate
		}
	}
}

// poll returns whether a wait is over, and its results: if the buffer is full, if no more will come, or because it has failed.
func (b *inbox) poll(failed error) (n int, over bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n = b.got
	switch {
	case b.done != nil && !b.last: // begin may have done nothing
		err = b.done
	case n == len(b.want):
	case failed != nil:
		err = failed
	case b.done != nil:
		err = b.done
	default:
		return 0, false, nil
	}
	b.want, b.got = nil, 0
	return n, true, err
}
