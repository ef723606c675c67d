// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"cmp"
	"math/bits"
	"slices"
	"sync"

	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Sizes that are recycled, as powers of two.
const (
	smallestClass = 12 // 4 KiB: what is smaller costs little
	largestClass  = 20 // 1 MiB: what is larger is kept one by one
	mostKept      = 16 // of those
)

// Buffers is the memory that tables decode in: an allocator that gives freed
// buffers out again. A decoder frees as much as it allocates, batch after batch;
// on the Go heap alone that is garbage several times the size of a batch, and its
// clearing. Memory comes from the Go heap, so that what is never freed is collected. Small buffers are kept
// by size until a garbage collection. Large ones, a page can be tens of
// megabytes, are few and of all sizes: the best fitting of those at hand is taken,
// and they are kept until Drop. Tables of one process may share Buffers. It is safe
// for concurrent use; the zero value is ready.
type Buffers struct {
	classes [largestClass + 1]sync.Pool // of *[]byte of len 1<<class
	plain   memory.GoAllocator

	mu    sync.Mutex
	large [][]byte // free, by capacity
}

var _ memory.Allocator = (*Buffers)(nil)

// classOf returns the class that size bytes fit; -1 if they are too few or too
// many to be kept by size.
func classOf(size int) int {
	c := bits.Len(uint(max(size, 1) - 1))
	if c <= smallestClass || c > largestClass {
		return -1
	}
	return c
}

// Allocate returns size zeroed bytes.
func (r *Buffers) Allocate(size int) []byte {
	b, used := r.take(size)
	if used {
		clear(b)
	}
	return b
}

// take returns size bytes, zeroed unless they were used before.
func (r *Buffers) take(size int) (b []byte, used bool) {
	c := classOf(size)
	switch {
	case size > 1<<largestClass:
		return r.takeLarge(size)
	case c < 0:
		return r.plain.Allocate(size), false
	}
	if b, ok := r.classes[c].Get().(*[]byte); ok {
		return (*b)[:size], true
	}
	return make([]byte, 1<<c)[:size], false
}

// takeLarge returns the smallest kept buffer of at least size bytes, unless most
// of it would be left over. If there is none, a new one, somewhat larger so that
// it serves the next page too, takes the place of one that was a little too small.
func (r *Buffers) takeLarge(size int) (b []byte, used bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, _ := slices.BinarySearchFunc(r.large, size, byCapacity)
	if i < len(r.large) && cap(r.large[i]) <= 2*size {
		b = r.large[i][:size]
		r.large = slices.Delete(r.large, i, i+1)
		return b, true
	}
	if i > 0 && 2*cap(r.large[i-1]) >= size {
		r.large = slices.Delete(r.large, i-1, i)
	}
	return make([]byte, size+size/8)[:size], false
}

// keepLarge files a buffer. The smallest goes when there are too many.
func (r *Buffers) keepLarge(b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, _ := slices.BinarySearchFunc(r.large, cap(b), byCapacity)
	r.large = slices.Insert(r.large, i, b)
	if len(r.large) > mostKept {
		r.large = slices.Delete(r.large, 0, 1)
	}
}

func byCapacity(b []byte, size int) int { return cmp.Compare(cap(b), size) }

// Reallocate returns size bytes that begin with b's, the rest zeroed.
func (r *Buffers) Reallocate(size int, b []byte) []byte {
	if size <= cap(b) && cap(b) <= 2*size {
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

// unzeroed is Buffers whose bytes hold anything until they are written: for those
// who write every byte before they read it.
type unzeroed struct{ *Buffers }

// Allocate returns size bytes of any content.
func (u unzeroed) Allocate(size int) []byte {
	b, _ := u.take(size)
	return b
}

// Reallocate returns size bytes that begin with b's.
func (u unzeroed) Reallocate(size int, b []byte) []byte {
	if size <= cap(b) && cap(b) <= 2*size {
		return b[:size]
	}
	out, _ := u.take(size)
	copy(out, b)
	u.Free(b)
	return out
}

// withoutZeros is mem without its clearing, if it can do without.
func withoutZeros(mem allocator) allocator {
	if b, ok := mem.(*Buffers); ok {
		return unzeroed{b}
	}
	return mem
}

// Free takes b back.
func (r *Buffers) Free(b []byte) {
	b = b[:cap(b)]
	if len(b) > 1<<largestClass {
		r.keepLarge(b)
		return
	}
	if c := classOf(len(b)); c >= 0 && len(b) == 1<<c {
		r.classes[c].Put(&b)
	}
}

// DecodeIn makes the table decode in buffers that it shares with others. Call it
// before Fetch.
func (t *Table) DecodeIn(b *Buffers) { t.mem = b }

// Drop leaves what is kept to the garbage collector.
func (r *Buffers) Drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.large = nil
}
