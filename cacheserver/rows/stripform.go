// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"math"
	"slices"
	"unsafe"
)

// lowBytes has the low n bytes set, for n from 0 to 8.
var lowBytes = [16]uint64{0, 1<<8 - 1, 1<<16 - 1, 1<<24 - 1, 1<<32 - 1, 1<<40 - 1, 1<<48 - 1, 1<<56 - 1, math.MaxUint64}

// putForm writes n integers of width bytes to a strip in which they take fewer.
func putForm(dst []byte, f *form, width int, from unsafe.Pointer, n int) {
	if width == 4 {
		putShorter(dst, f, unsafe.Slice((*int32)(from), n))
		return
	}
	putShorter(dst, f, unsafe.Slice((*int64)(from), n))
}

// putShorter writes each value with two stores that together cover exactly its bytes, and may overlap: a longer store would overwrite the
// next column.
func putShorter[T int32 | int64](dst []byte, f *form, values []T) {
	width, stride, base := int(f.width), int(f.stride), f.base
	_ = dst[(len(values)-1)*stride+width-1]
	to := unsafe.Pointer(unsafe.SliceData(dst))
	switch {
	case width == 1:
		for _, v := range values {
			*(*uint8)(to) = uint8(int64(v) - base)
			to = unsafe.Add(to, stride)
		}
	case width <= 4:
		rest := width - 2
		for _, v := range values {
			x := uint32(int64(v) - base)
			*(*uint16)(to) = uint16(x)
			*(*uint16)(unsafe.Add(to, rest)) = uint16(x >> (8 * rest & 31))
			to = unsafe.Add(to, stride)
		}
	default:
		rest := width - 4
		for _, v := range values {
			x := uint64(int64(v) - base)
			*(*uint32)(to) = uint32(x)
			*(*uint32)(unsafe.Add(to, rest)) = uint32(x >> (8 * rest & 63))
			to = unsafe.Add(to, stride)
		}
	}
}

// stripRows are rows of chunks' strips. They are copied column by column, so that a column's width is looked at once for many rows.
type stripRows struct {
	n     int
	rows  [stripBlock]unsafe.Pointer // the first byte of each
	forms [stripBlock]*form          // of the first node of its chunk
	kind  uint16                     // of the first form
	mixed bool                       // forms are of several kinds
	block [stripBlock * stripBytes]byte
}

// unpackForms is unpack for strips whose columns have other widths and offsets from chunk to chunk.
func (p *copier) unpackForms(parts []part) {
	ps, first, at := p.rows, &parts[0], 0
	var block stripRows
	batch := ps[:min(len(ps), aheadPieces)]
	p.prefetch(batch, first.node, first.src)
	for len(batch) > 0 {
		ps = ps[len(batch):]
		next := ps[:min(len(ps), aheadPieces)]
		p.prefetch(next, first.node, first.src)
		for i := range batch {
			q := &batch[i]
			f := p.table.of(q.src, first.node.id)
			row := unsafe.Add(first.src[q.src], int(q.start)*int(f.stride)-int(f.at))
			if int(q.n) >= stripBlock {
				at += p.flush(&block, parts, at)
				p.unpackRun(parts, q, row, at)
				at += int(q.n)
				continue
			}
			for range q.n {
				block.add(row, f, first.node.id)
				row = unsafe.Add(row, f.stride)
				if block.n == stripBlock {
					at += p.flush(&block, parts, at)
				}
			}
		}
		batch = next
	}
	p.flush(&block, parts, at)
}

// add collects a row of a chunk in which a node has the form f.
func (b *stripRows) add(row unsafe.Pointer, f *form, node int) {
	if b.n == 0 {
		b.kind, b.mixed = f.kind, f.kind == mostKinds
	}
	b.mixed = b.mixed || f.kind != b.kind
	b.rows[b.n&(stripBlock-1)], b.forms[b.n&(stripBlock-1)] = row, formAt(f, -node)
	b.n++
}

// flush copies the collected rows to slots of the columns from slot at on, and returns their number.
func (p *copier) flush(b *stripRows, parts []part, at int) int {
	n := b.n
	for n > 0 && len(parts) > 0 {
		if k := b.together(parts, at); k > 0 {
			parts = parts[k:]
			continue
		}
		c := &parts[0]
		parts = parts[1:]
		based := p.buffers[c.node.id].based
		switch c.node.width {
		case 8:
			takeColumn(b, c.node.id, based, slots[uint64](c, at, n))
		case 4:
			takeColumn(b, c.node.id, based, slots[uint32](c, at, n))
		case 2:
			takeColumn(b, c.node.id, based, slots[uint16](c, at, n))
		case 1:
			takeColumn(b, c.node.id, based, slots[uint8](c, at, n))
		default:
			width := c.node.width
			for k := range n {
				from := unsafe.Slice((*byte)(unsafe.Add(b.rows[k], formAt(b.forms[k], c.node.id).at)), width)
				copy(c.dst[(at+k)*width:], from)
			}
		}
	}
	b.n = 0
	return n
}

// together copies the collected rows of leading columns that transpose handles at once and that chunks have as they are. It returns the
// number of columns, or 0.
func (b *stripRows) together(parts []part, at int) int {
	k := alike(parts)
	if k == 1 || b.mixed || b.n%8 > 0 || slices.ContainsFunc(parts[:k], func(c part) bool { return c.node.integer }) {
		return 0
	}
	first, size := formAt(b.forms[0], parts[0].node.id).at, k*parts[0].node.width
	switch size {
	case 64:
		collect[[64]byte](b, first)
	case 32:
		collect[[32]byte](b, first)
	default:
		collect[[16]byte](b, first)
	}
	transpose(parts[:k], unsafe.Pointer(&b.block), size, b.n, at)
	return k
}

// collect copies a part of each row, from byte at on, to the block.
func collect[T any](b *stripRows, at uint8) {
	to := unsafe.Slice((*T)(unsafe.Pointer(&b.block)), stripBlock)
	for i, row := range b.rows[:b.n] {
		to[i] = *(*T)(unsafe.Add(row, at))
	}
}

// takeColumn copies the values of a column, of which some may have a base.
func takeColumn[T unsigned](b *stripRows, node int, based bool, out []T) {
	if b.mixed {
		takeValues(b, node, out)
	} else {
		takeAlike(b, node, based, out)
	}
}

// unsigned is an integer type of messages.
type unsigned interface {
	uint8 | uint16 | uint32 | uint64
}

// takeValues copies the values of a column. It reads up to seven bytes more, of the next column or of what follows a strip in its slab.
func takeValues[T unsigned](b *stripRows, node int, out []T) {
	rows, forms := b.rows[:len(out)], b.forms[:len(out)]
	for i := range out {
		f := formAt(forms[i], node)
		out[i] = *(*T)(unsafe.Add(rows[i], f.at))&T(lowBytes[f.width&15]) + T(f.base)
	}
}

// takeAlike is takeValues for rows of chunks with the same widths, of which some may have a base.
func takeAlike[T unsigned](b *stripRows, node int, based bool, out []T) {
	rows, forms := b.rows[:len(out)], b.forms[:len(out)]
	f := formAt(forms[0], node)
	at, mask := f.at, T(lowBytes[f.width&15])
	if !based {
		for i := range out {
			out[i] = *(*T)(unsafe.Add(rows[i], at)) & mask
		}
		return
	}
	for i := range out {
		out[i] = *(*T)(unsafe.Add(rows[i], at))&mask + T(formAt(forms[i], node).base)
	}
}

// formAt is the form of a node, by that of the first node of the chunk.
func formAt(first *form, node int) *form {
	return (*form)(unsafe.Add(unsafe.Pointer(first), node*int(unsafe.Sizeof(form{}))))
}

// unpackRun copies a long piece, the first row of which starts at from, to slots of the columns from slot at on. It copies as many rows at
// a time as stay in the L1 cache while one column after the other is copied.
func (p *copier) unpackRun(parts []part, q *piece, from unsafe.Pointer, at int) {
	for left := int(q.n); left > 0; {
		n := min(left, stripBlock)
		stride := 0
		for i := range parts {
			c := &parts[i]
			f := p.table.of(q.src, c.node.id)
			first := unsafe.Add(from, f.at)
			stride = int(f.stride)
			switch {
			case int(f.width) == c.node.width && f.base == 0:
				get(c, first, stride, n, at)
			case c.node.width == 8:
				takeRun(f, first, slots[uint64](c, at, n))
			case c.node.width == 4:
				takeRun(f, first, slots[uint32](c, at, n))
			case c.node.width == 2:
				takeRun(f, first, slots[uint16](c, at, n))
			default:
				takeRun(f, first, slots[uint8](c, at, n))
			}
		}
		from, left, at = unsafe.Add(from, n*stride), left-n, at+n
	}
}

// takeRun is takeValues for rows one after the other.
func takeRun[T unsigned](f *form, from unsafe.Pointer, out []T) {
	mask, base, stride := T(lowBytes[f.width&15]), T(f.base), int(f.stride)
	for i := range out {
		out[i] = *(*T)(from)&mask + base
		from = unsafe.Add(from, stride)
	}
}
