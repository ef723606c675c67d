// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"golang.org/x/sys/unix"
)

// Sizes that are recycled, as powers of two.
const (
	smallestClass = 12 // 4 KiB: what is smaller costs little
	largestClass  = 16 // 64 KiB: what is larger is kept one by one
)

// Buffers is the memory that tables decode in: an allocator that gives freed
// buffers out again. A decoder frees as much as it allocates, batch after batch;
// on the Go heap alone that is garbage several times the size of a batch, and its
// clearing. Small buffers come from the Go heap and are kept by size until a garbage
// collection. Of large ones, a page can be tens of megabytes, the best fitting free
// one is taken. Tables of one process may share Buffers. It is safe for concurrent use.
//
// The zero value takes large buffers from the Go heap too, and keeps few of them. That of
// NewMappedBuffers maps them, so that memory is the system's as soon as it is not needed.
type Buffers struct {
	classes [largestClass + 1]sync.Pool // of *[]byte of len 1<<class
	plain   memory.GoAllocator
	limit   int64 // bytes of large buffers past which unused ones are given back

	mu     sync.Mutex
	free   [][]byte         // large ones, the first freed first
	large  int64            // bytes of large ones: of free, and of mapped ones in use
	mapped map[*byte][]byte // every mapping by its first byte; nil: none is mapped
}

// usualLimit is Buffers.limit of the zero value.
const usualLimit = 16 << 20

// NewMappedBuffers makes Buffers that map large buffers and give unused ones back
// when all together have more than so many bytes. Close it after use.
func NewMappedBuffers(limit int64) *Buffers {
	return &Buffers{limit: limit, mapped: map[*byte][]byte{}}
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

// takeLarge returns the smallest free buffer of at least size bytes, unless much of
// it would be left over, or else a new one, somewhat larger so that it serves the next
// page too.
func (r *Buffers) takeLarge(size int) (b []byte, used bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	best := -1
	for i, f := range r.free {
		if size <= cap(f) && cap(f) <= size+size/2 && (best < 0 || cap(f) <= cap(r.free[best])) {
			best = i
		}
	}
	if best >= 0 {
		b = r.free[best][:size]
		r.free = slices.Delete(r.free, best, best+1)
		if r.mapped == nil {
			r.large -= int64(cap(b))
		}
		return b, true
	}
	if r.mapped == nil {
		return make([]byte, size, size+size/8), false
	}
	r.large += int64(size + size/8)
	r.shrinkLocked(r.limit)
	b, err := unix.Mmap(-1, 0, size+size/8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		r.large -= int64(size + size/8)
		return make([]byte, size), false // the garbage collector's
	}
	r.mapped[unsafe.SliceData(b)] = b
	return b[:size], false
}

// keepLarge files a buffer. Those that were freed first go when there are too many.
func (r *Buffers) keepLarge(b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.mapped[unsafe.SliceData(b)]; !ok && r.mapped != nil {
		return
	}
	r.free = append(r.free, b)
	if r.mapped == nil {
		r.large += int64(cap(b))
	}
	r.shrinkLocked(cmp.Or(r.limit, usualLimit))
}

// shrinkLocked lets unused buffers go while there are more than so many bytes of large ones.
func (r *Buffers) shrinkLocked(most int64) {
	n := 0
	for ; r.large > most && n < len(r.free); n++ {
		b := r.free[n]
		r.large -= int64(cap(b))
		r.unmapLocked(unsafe.SliceData(b))
	}
	r.free = slices.Delete(r.free, 0, n)
}

// unmapLocked gives the mapping that begins at a byte back to the system.
func (r *Buffers) unmapLocked(at *byte) {
	whole, ok := r.mapped[at]
	if !ok {
		return
	}
	delete(r.mapped, at)
	if err := unix.Munmap(whole); err != nil {
		panic(fmt.Sprintf("source: unmap of a buffer that was mapped: %v", err))
	}
}

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

// WithoutZeros is mem without its clearing, if it can do without.
func WithoutZeros(mem memory.Allocator) memory.Allocator {
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

// Drop lets the unused buffers go.
func (r *Buffers) Drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shrinkLocked(0)
}

// Close unmaps all that is mapped, also what a decoder that panicked did not free. Nobody may use a buffer after it;
// new ones may be allocated.
func (r *Buffers) Close() {
	r.Drop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for at, b := range r.mapped {
		r.large -= int64(cap(b))
		r.unmapLocked(at)
	}
}
