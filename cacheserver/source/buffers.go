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

// Size classes of recycled buffers, as powers of two.
const (
	smallestClass = 12 // 4 KiB: smaller ones are cheap to allocate
	largestClass  = 16 // 64 KiB: larger ones are kept in a list
)

// Buffers is an allocator for decoding that reuses freed buffers. A decoder frees as much as it allocates, batch after batch; with
// the Go heap alone that is garbage of several times the size of a batch, which must be zeroed too. Small buffers come from the Go
// heap and are pooled by size class until a garbage collection. For large ones (a page can have tens of megabytes) the best fitting
// free buffer is used. Tables of one process may share Buffers. It is safe for concurrent use.
//
// The zero value allocates large buffers on the Go heap too, and keeps few of them. That of NewMappedBuffers maps them, so that their
// memory is returned to the system as soon as it is not needed.
type Buffers struct {
	classes [largestClass + 1]sync.Pool // of *[]byte of len 1<<class
	plain   memory.GoAllocator

	mu     sync.Mutex
	limit  int64            // see NewMappedBuffers
	free   [][]byte         // free large buffers, in the order in which they were freed
	unused int64            // bytes of free
	mapped map[*byte][]byte // every mapping by its first byte; nil: buffers are not mapped
	used   int64            // bytes of mappings in use
	peak   int64            // maximum of used since Close
}

// usualLimit is the limit of the zero value.
const usualLimit = 16 << 20

// NewMappedBuffers makes Buffers that map large buffers. Unused ones are released when all together, used and unused, exceed both limit
// bytes and what was in use at once: so the next row group finds the memory of the one before it, and no more is ever mapped than
// limit or what decoding needed. Close it after use.
func NewMappedBuffers(limit int64) *Buffers {
	return &Buffers{limit: limit, mapped: map[*byte][]byte{}}
}

// SetLimit changes the limit. A lower one forgets what was in use at once before.
func (r *Buffers) SetLimit(limit int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if limit < r.limit {
		r.peak = r.used
	}
	r.limit = limit
	r.shrinkLocked(max(limit, r.peak))
}

var _ memory.Allocator = (*Buffers)(nil)

// classOf returns the size class for size bytes; -1 if the size is not pooled by class.
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

// take returns size bytes, zeroed unless used is true.
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

// takeLarge returns the smallest free buffer of at least size bytes, unless much of it would be unused, or else a new one, somewhat
// larger so that the next page fits too.
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
		r.unused -= int64(cap(b))
		r.useLocked(cap(b))
		return b, true
	}
	if r.mapped == nil {
		return make([]byte, size, size+size/8), false
	}
	r.useLocked(size + size/8)
	r.shrinkLocked(max(r.limit, r.peak))
	b, err := unix.Mmap(-1, 0, size+size/8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		r.used -= int64(size + size/8)
		return make([]byte, size), false // on the Go heap
	}
	r.mapped[unsafe.SliceData(b)] = b
	return b[:size], false
}

// keepLarge adds a buffer to the free ones. If there are too many, those that were freed first are released.
func (r *Buffers) keepLarge(b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.mapped[unsafe.SliceData(b)]; ok {
		r.used -= int64(cap(b))
	} else if r.mapped != nil {
		return
	}
	r.free = append(r.free, b)
	r.unused += int64(cap(b))
	r.shrinkLocked(max(cmp.Or(r.limit, usualLimit), r.peak))
}

// useLocked counts n bytes of a mapping as used.
func (r *Buffers) useLocked(n int) {
	if r.mapped != nil {
		r.used += int64(n)
		r.peak = max(r.peak, r.used)
	}
}

// shrinkLocked releases unused buffers while they exceed most bytes together with the mappings in use.
func (r *Buffers) shrinkLocked(most int64) {
	n := 0
	for ; r.used+r.unused > most && n < len(r.free); n++ {
		b := r.free[n]
		r.unused -= int64(cap(b))
		r.unmapLocked(unsafe.SliceData(b))
	}
	r.free = slices.Delete(r.free, 0, n)
}

// unmapLocked unmaps the mapping that begins at a byte.
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

// Reallocate returns size bytes that begin with the content of b, the rest zeroed.
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

// unzeroed is Buffers without zeroing, for callers that write every byte before they read it.
type unzeroed struct{ *Buffers }

// Allocate returns size bytes with arbitrary content.
func (u unzeroed) Allocate(size int) []byte {
	b, _ := u.take(size)
	return b
}

// Reallocate returns size bytes that begin with the content of b.
func (u unzeroed) Reallocate(size int, b []byte) []byte {
	if size <= cap(b) && cap(b) <= 2*size {
		return b[:size]
	}
	out, _ := u.take(size)
	copy(out, b)
	u.Free(b)
	return out
}

// WithoutZeros returns mem without zeroing if it is a Buffers, otherwise mem.
func WithoutZeros(mem memory.Allocator) memory.Allocator {
	if b, ok := mem.(*Buffers); ok {
		return unzeroed{b}
	}
	return mem
}

// Free returns b to the allocator.
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

// Drop releases the unused buffers.
func (r *Buffers) Drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shrinkLocked(0)
}

// Close unmaps all mappings, including those that a decoder that panicked did not free. No buffer may be used afterwards, but new
// ones may be allocated.
func (r *Buffers) Close() {
	r.Drop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for at := range r.mapped {
		r.unmapLocked(at)
	}
	r.used, r.peak = 0, 0
}
