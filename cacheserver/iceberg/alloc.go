// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"math/bits"
	"sync"

	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Sizes that are recycled: four steps a power of two, so that a buffer wastes at
// most a fifth. A page can be tens of megabytes.
const (
	smallestBits = 12 // 4 KiB: what is smaller costs little
	largestBits  = 30
	steps        = 4
)

// recycler is an allocator that gives freed buffers out again. A decoder frees
// as much as it allocates, batch after batch; on the Go heap alone that is
// garbage several times the size of a batch, and its clearing. Memory comes from
// the Go heap, so that what is never freed is collected, and a garbage
// collection empties the recycler. It is safe for concurrent use; the zero value
// is ready.
type recycler struct {
	classes [(largestBits + 1) * steps]sync.Pool // of *[]byte of the class's size
	plain   memory.GoAllocator
}

var _ memory.Allocator = (*recycler)(nil)

// classOf returns the class that size bytes fit and its size; -1 if they are not
// recycled.
func classOf(size int) (class, rounded int) {
	if size <= 1<<smallestBits || size > 1<<largestBits {
		return -1, size
	}
	power := bits.Len(uint(size-1)) - 1 // 1<<power < size <= 2<<power
	step := 1 << power / steps
	n := (size - 1<<power + step - 1) / step
	return power*steps + n - 1, 1<<power + n*step
}

// Allocate returns size zeroed bytes.
func (r *recycler) Allocate(size int) []byte {
	b, used := r.take(size)
	if used {
		clear(b)
	}
	return b
}

// take returns size bytes, zeroed unless they were used before.
func (r *recycler) take(size int) (b []byte, used bool) {
	c, rounded := classOf(size)
	if c < 0 {
		return r.plain.Allocate(size), false
	}
	if b, ok := r.classes[c].Get().(*[]byte); ok {
		return (*b)[:size], true
	}
	return make([]byte, rounded)[:size], false
}

// Reallocate returns size bytes that begin with b's, the rest zeroed.
func (r *recycler) Reallocate(size int, b []byte) []byte {
	if c, rounded := classOf(size); c >= 0 && rounded == cap(b) {
		grown := b[:size]
		clear(grown[min(len(b), size):])
		return grown
	}
	out, used := r.take(size)
	n := copy(out, b)
	if used {
		clear(out[n:])
	}
	r.Free(b)
	return out
}

// Free takes b back.
func (r *recycler) Free(b []byte) {
	c, rounded := classOf(cap(b))
	if c < 0 || cap(b) != rounded {
		return
	}
	b = b[:cap(b)]
	r.classes[c].Put(&b)
}
