// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"context"
	"io"
	"sync"
)

// inbox holds bytes that a stream has received and its handler has not read. One goroutine puts, one takes. Its
// length is bounded by the stream's window.
type inbox struct {
	more chan struct{} // buffered: something has changed

	mu   sync.Mutex
	data []byte
	done error // what comes after data; nil: more may come
	last bool  // the client ended its side: data is read before done is told
}

func newInbox() inbox { return inbox{more: make(chan struct{}, 1)} }

// put appends a copy of data.
func (b *inbox) put(data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done == nil {
		b.data = append(b.data, data...)
		b.notify()
	}
}

// finish says that nothing follows: what is there is read, then io.EOF.
func (b *inbox) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done == nil {
		b.done, b.last = io.EOF, true
		b.notify()
	}
}

// end says that nothing is read any more, and why.
func (b *inbox) end(why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done == nil || b.last {
		b.done, b.last = why, false
		b.notify()
	}
}

func (b *inbox) notify() {
	select {
	case b.more <- struct{}{}:
	default:
	}
}

// take moves received bytes into the front of p and says how many; it waits for at least one.
func (b *inbox) take(ctx context.Context, p []byte) (int, error) {
	for {
		n, err := b.poll(p)
		if n > 0 || err != nil {
			return n, err
		}
		select {
		case <-b.more:
		case <-ctx.Done():
			return 0, ctx.Err()
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
	if b.data = b.data[n:]; len(b.data) == 0 {
		b.data = nil
	}
	return n, nil
}
