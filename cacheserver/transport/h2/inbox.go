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
// calls take. The stream's window bounds its length.
type inbox struct {
	memory Memory        // memory for data is reserved here
	more   chan struct{} // buffered: receives a value after a change

	mu   sync.Mutex
	want []byte // the unfilled part of the buffer passed to take: put writes there as long as data is empty
	got  int    // number of bytes that put has written to want since the last take
	data []byte // received bytes that did not fit into want
	done error  // returned after data; nil: more may arrive
	last bool   // done is io.EOF, by the client: take returns data before it
}

func newInbox(memory Memory) inbox { return inbox{memory: memory, more: make(chan struct{}, 1)} }

// put copies data to where it is wanted, as far as there is room, so that a message being received takes no memory besides its own. It
// keeps a copy of the rest; if there is no memory for it, the inbox ends with an error.
func (b *inbox) put(data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done != nil {
		return
	}
	if len(b.data) == 0 {
		n := copy(b.want[b.got:], data)
		b.got += n
		if data = data[n:]; len(data) == 0 {
			b.notify()
			return
		}
	}
	if err := reserve(b.memory, int64(copies*len(b.data)), int64(copies*len(data))); err != nil {
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

// take moves received bytes to the front of p and returns their number. It waits for at least one byte, until due or, if due is zero,
// without a limit. If it returns fewer bytes than p has room for and no error, put may write to the rest, p[n:], which the next call
// must pass.
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
			b.leave()
			return 0, ctx.Err()
		case <-late:
			b.leave()
			return 0, errLate
		}
	}
}

func (b *inbox) poll(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done != nil && !b.last {
		b.want, b.got = nil, 0
		return 0, b.done
	}
	n := b.got // it precedes data
	if n == 0 {
		n = copy(p, b.data)
		b.memory.Release(int64(copies * n))
		if b.data = b.data[n:]; len(b.data) == 0 {
			b.data = nil
		}
	}
	b.want, b.got = p[n:], 0
	if n == 0 {
		return 0, b.done
	}
	return n, nil
}

// leave ends a take that failed: put does not write to its memory any more. The call ends too, so what it has written is lost.
func (b *inbox) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.want, b.got = nil, 0
}
