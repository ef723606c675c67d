// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"encoding/binary"
	"iter"
	"unsafe"

	"github.com/kubeflow/datacache/cacheserver/rows/bitmap"
)

// fill copies the measured rows to the places assigned by place. It writes every byte of body, padding included, and makes the null
// counts in p.fields exact.
func (p *copier) fill(nodes []*node, body []byte) {
	p.body = body
	p.fillStrips(nodes)
	buf := 0
	for i, n := range nodes {
		p.fillNode(n, &p.fields[i], buf)
		buf += n.kind.buffers()
	}
	p.body = nil
}

// fillNode fills the buffers of a node, the first of which has index buf.
func (p *copier) fillNode(n *node, f *fieldNode, buf int) {
	ps, sb := p.of[n.id], &p.buffers[n.id]
	if n.kind == kindNull {
		return
	}
	valid := p.buffer(buf)
	if len(valid) > 0 {
		f.nulls = f.length - int64(writeValidity(valid, sb, ps))
	}
	switch n.kind {
	case kindBool:
		dst := p.buffer(buf + 1)
		writeBits(dst, sb, ps)
		if len(valid) > 0 && !p.clean {
			keepValid(dst, valid)
		}
	case kindFixed:
		p.fillFixed(n, f, valid, buf+1)
	case kindVar:
		p.fillOffsets(n, p.buffer(buf+1), sb, ps)
		data := p.buffer(buf + 2)
		if data != nil {
			clear(data[copyBytes(data, 1, sb.b, p.items[n.id]):])
		}
	case kindList:
		p.fillOffsets(n, p.buffer(buf+1), sb, ps)
	case kindLength:
		writeLengths(p.buffer(buf+1), n, sb.a, ps)
	}
}

// fillFixed fills the values of a node of kindFixed, unless they are referred to or in a strip.
func (p *copier) fillFixed(n *node, f *fieldNode, valid []byte, buf int) {
	if n.strip != nil && p.packed {
		if f.nulls > 0 {
			zeroStripNulls(p.body[p.homes[buf]:], valid, int(f.length), &p.forms[n.id])
		}
		return
	}
	dst, sb, width := p.buffer(buf), &p.buffers[n.id], n.width
	switch {
	case dst == nil:
		return
	case n.strip != nil && p.clean:
		clear(dst[int(f.length)*n.width:])
	case p.packed && p.clean && n.integer:
		width = int(p.forms[n.id].width)
		clear(dst[writeValues(dst, width, sb.a, p.of[n.id]):])
	case p.packed && n.integer && int(p.forms[n.id].width) < width:
		width = int(p.forms[n.id].width)
		clear(dst[writeNarrow(dst, n.width, &p.forms[n.id], sb.a, p.of[n.id]):])
	case p.clean && sb.narrow:
		clear(dst[p.writeWide(dst, n):])
	default:
		clear(dst[writeValues(dst, n.width, sb.a, p.of[n.id]):])
	}
	if f.nulls > 0 && (!p.clean || sb.dirty) {
		zeroNulls(dst, valid, int(f.length), width)
	}
}

func (p *copier) fillOffsets(n *node, dst []byte, sb *sourceBuffers, ps []piece) {
	var tail int
	if n.width == 4 {
		tail = writeOffsets[int32](dst, sb.a, ps, p.items[n.id])
	} else {
		tail = writeOffsets[int64](dst, sb.a, ps, p.items[n.id])
	}
	clear(dst[tail:])
}

// buffer returns a buffer of the body with its padding; nil if it is referred to.
func (p *copier) buffer(buf int) []byte {
	home := p.homes[buf]
	if home == referred {
		return nil
	}
	return p.body[home : home+padded(p.spans[buf].length)]
}

// writeValidity writes the bitmap of the pieces and returns the number of valid slots.
func writeValidity(dst []byte, sb *sourceBuffers, ps []piece) int {
	w := bitmap.NewWriter(dst)
	for i := range ps {
		q := &ps[i]
		switch {
		case q.src < 0:
			w.Fill(false, int(q.n))
		case sb.valid[q.src] == nil:
			w.Fill(true, int(q.n))
		default:
			w.Take(sb.valid[q.src], q.start+sb.bitOf(q.src), int(q.n))
		}
	}
	return w.Close()
}

// writeBits writes the values of a boolean node.
func writeBits(dst []byte, sb *sourceBuffers, ps []piece) {
	w := bitmap.NewWriter(dst)
	for i := range ps {
		q := &ps[i]
		if q.src < 0 {
			w.Fill(false, int(q.n))
			continue
		}
		w.Take(sb.a[q.src], q.start+sb.bitOf(q.src), int(q.n))
	}
	w.Close()
}

// writeValues writes values of width bytes and returns where they end.
func writeValues(dst []byte, width int, src []unsafe.Pointer, ps []piece) int {
	switch width {
	case 1:
		return copyValues[uint8](dst, src, ps)
	case 2:
		return copyValues[uint16](dst, src, ps)
	case 4:
		return copyValues[uint32](dst, src, ps)
	case 8:
		return copyValues[uint64](dst, src, ps)
	case 16:
		return copyValues[[2]uint64](dst, src, ps)
	}
	return copyBytes(dst, width, src, ps)
}

// copyValues is copyBytes for values that fit in a register.
func copyValues[T any](dst []byte, src []unsafe.Pointer, ps []piece) int {
	size := unsafe.Sizeof(*new(T))
	if len(ps)*int(size) < len(dst)/4 {
		return copyBytes(dst, int(size), src, ps)
	}
	out := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(dst))), len(dst)/int(size))
	at := 0
	for batch := range ahead(ps, src, int(size)) {
		for i := range batch {
			q := &batch[i]
			n := int(q.n)
			switch {
			case q.src < 0:
				clear(out[at : at+n])
			case n == 1:
				out[at] = *(*T)(unsafe.Add(src[q.src], uintptr(q.start)*size))
			case n > 1:
				copy(out[at:at+n], unsafe.Slice((*T)(unsafe.Add(src[q.src], uintptr(q.start)*size)), n))
			}
			at += n
		}
	}
	return at * int(size)
}

// copyBytes writes the pieces' values of width bytes consecutively and returns the end offset.
func copyBytes(dst []byte, width int, src []unsafe.Pointer, ps []piece) int {
	at := 0
	for batch := range ahead(ps, src, width) {
		for i := range batch {
			q := &batch[i]
			n := int(q.n) * width
			switch {
			case n == 0:
			case q.src < 0:
				clear(dst[at : at+n])
			default:
				copy(dst[at:at+n], unsafe.Slice((*byte)(unsafe.Add(src[q.src], uintptr(q.start)*uintptr(width))), n))
			}
			at += n
		}
	}
	return at
}

// aheadPieces is how many pieces are prefetched while as many are copied: enough to use all of a core's outstanding cache misses, and
// few enough that they stay in the L2 cache, however long they are.
const aheadPieces = 64

// ahead yields the pieces in groups, and prefetches the next group before it yields one. A piece consists of slots of width bytes.
// Cache and TLB misses then overlap, while successive copies would wait for each.
func ahead(ps []piece, src []unsafe.Pointer, width int) iter.Seq[[]piece] {
	return func(yield func([]piece) bool) {
		batch := ps[:min(len(ps), aheadPieces)]
		prefetch(batch, src, width)
		for len(batch) > 0 {
			ps = ps[len(batch):]
			next := ps[:min(len(ps), aheadPieces)]
			prefetch(next, src, width)
			if !yield(batch) {
				return
			}
			batch = next
		}
	}
}

// writeOffsets writes the offsets of the pieces, starting at 0, and returns the end. items are the child slots of each piece.
func writeOffsets[O int32 | int64](dst []byte, src []unsafe.Pointer, ps, items []piece) int {
	size := int(unsafe.Sizeof(O(0)))
	out := unsafe.Slice((*O)(unsafe.Pointer(unsafe.SliceData(dst))), len(dst)/size)
	out[0] = 0
	at, end := 1, O(0)
	for i := range ps {
		q := &ps[i]
		n := int(q.n)
		switch {
		case n == 1:
			out[at] = end + O(items[i].n)
		case q.src < 0:
			for k := range out[at : at+n] {
				out[at+k] = end
			}
		case n > 1:
			from := unsafe.Slice((*O)(unsafe.Add(src[q.src], uintptr(q.start+1)*uintptr(size))), n)
			rebase(out[at:at+n], from, end-O(items[i].start))
		}
		end += O(items[i].n)
		at += n
	}
	return at * size
}

func rebase[O int32 | int64](dst, src []O, by O) {
	if by == 0 {
		copy(dst, src)
		return
	}
	src = src[:len(dst)]
	for i := range dst {
		dst[i] = src[i] + by
	}
}

// keepValid clears the bits of nulls.
func keepValid(dst, valid []byte) {
	for i := 0; i+8 <= len(dst); i += 8 {
		word := binary.LittleEndian.Uint64(dst[i:]) & binary.LittleEndian.Uint64(valid[i:])
		binary.LittleEndian.PutUint64(dst[i:], word)
	}
}

// zeroNulls clears the values of nulls.
func zeroNulls(dst, valid []byte, n, width int) {
	bits := unsafe.Pointer(unsafe.SliceData(valid))
	for at := 0; at < n; {
		one, run := bitmap.Run(bits, int64(at), n-at)
		if !one {
			clear(dst[at*width : (at+run)*width])
		}
		at += run
	}
}
