// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow/memory"
)

// output is a growing buffer. Set mem before use; release it if decoding stops before finish.
type output struct {
	mem memory.Allocator
	buf *memory.Buffer // nil: nothing written yet
}

// reserve makes room for a total of size bytes.
func (o *output) reserve(size int) {
	if o.buf == nil {
		o.buf = memory.NewResizableBuffer(o.mem)
	}
	if size > o.buf.Cap() {
		o.buf.Reserve(max(size, 2*o.buf.Len()))
	}
}

// resize sets the length to size bytes.
func (o *output) resize(size int) {
	o.reserve(size)
	o.buf.ResizeNoShrink(size)
}

func (o *output) bytes() []byte { return o.buf.Bytes() }

// len is the length in bytes.
func (o *output) len() int {
	if o.buf == nil {
		return 0
	}
	return o.buf.Len()
}

// finish returns the buffer and resets the output; the buffer is nil if nothing was written.
func (o *output) finish() *memory.Buffer {
	b := o.buf
	o.buf = nil
	return b
}

func (o *output) release() {
	if o.buf != nil {
		o.buf.Release()
		o.buf = nil
	}
}

// extend appends n values of T, with arbitrary content, and returns them.
func extend[T any](o *output, n int) []T {
	size := int(unsafe.Sizeof(*new(T)))
	from := o.len()
	o.resize(from + n*size)
	return valuesOf[T](o.bytes()[from:])
}

// valuesOf returns b as values of T; b is aligned for T.
func valuesOf[T any](b []byte) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(*new(T))))
}

// bytesOf returns the memory of values.
func bytesOf[T any](values []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*int(unsafe.Sizeof(*new(T))))
}
