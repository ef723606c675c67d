// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/kubeflow/datacache/cacheserver/rows/bitmap"
)

// A strip is two or more fixed-width columns that a chunk stores row by row, so that a randomly picked row costs one cache miss per
// strip instead of one per column. Messages have them column by column, as Arrow requires: they are transposed when messages are
// made. See ADR 8.
type strip struct {
	id     int
	nodes  []*node
	stride int // bytes of a row
}

const (
	stripBytes  = 64 // maximum size of a strip's row: a cache line
	stripColumn = 16 // maximum width of a column in a strip
	stripBlock  = 64 // number of rows that are copied column by column at a time: few enough to stay in the L1 cache
)

// findStrips groups narrow fixed-width columns into strips, in schema order; other columns may be between them.
func (l *Layout) findStrips() {
	open := strip{}
	seal := func() {
		if len(open.nodes) > 1 {
			s := open
			s.id = len(l.strips)
			for _, n := range s.nodes {
				n.strip = &s
			}
			l.strips = append(l.strips, &s)
		}
		open = strip{}
	}
	for _, c := range l.columns {
		n := c.root
		if n.kind != kindFixed || n.width == 0 || n.width > stripColumn {
			continue
		}
		if open.stride+n.width > stripBytes {
			seal()
		}
		n.at = open.stride
		open.nodes = append(open.nodes, n)
		open.stride += n.width
	}
	seal()
}

// part is one column of a strip during a copy.
type part struct {
	node *node
	dst  []byte           // destination of the column's first value
	src  []unsafe.Pointer // by source: the column's first value
	form *form            // of the strip that is written
}

// fillStrips copies the columns of nodes that belong to strips: into the strips or out of them.
func (p *copier) fillStrips(nodes []*node) {
	if !p.packed && !p.clean {
		return
	}
	i := 0
	for _, n := range nodes {
		if n.strip != nil {
			parts := &p.parts[n.strip.id]
			*parts = append(*parts, part{node: n, dst: p.body[p.homes[i+1]:], src: p.buffers[n.id].a, form: &p.forms[n.id]})
		}
		i += n.kind.buffers()
	}
	for id := range p.parts {
		parts := p.parts[id]
		switch {
		case len(parts) == 0:
			continue
		case p.packed && p.clean:
			stride := int(parts[0].form.stride)
			at := copyBytes(parts[0].dst, stride, parts[0].src, p.rows)
			clear(parts[0].dst[at:padded(int64(at))])
		case p.packed:
			pack(parts, p.rows)
		case p.buffers[parts[0].node.id].narrow:
			p.unpackForms(parts)
		default:
			unpack(parts, p.rows)
		}
		clear(parts)
		p.parts[id] = parts[:0]
	}
}

// pack copies rows of all columns of a strip into it.
func pack(parts []part, rows []piece) {
	stride, at := int(parts[0].form.stride), 0
	for _, q := range rows {
		for done := 0; done < int(q.n); done += stripBlock {
			n := min(int(q.n)-done, stripBlock)
			for _, c := range parts {
				put(c.dst[at:], c.form, c.node.width, c.src[q.src], int(q.start)+done, n)
			}
			at += n * stride
		}
	}
	clear(parts[0].dst[at:padded(int64(at))])
}

// put writes n values of width bytes, starting at slot start, to dst in a form.
func put(dst []byte, f *form, width int, src unsafe.Pointer, start, n int) {
	from, stride := unsafe.Add(src, start*width), int(f.stride)
	if int(f.width) < width {
		putForm(dst, f, width, from, n)
		return
	}
	switch width {
	case 1:
		putValues[uint8](dst, stride, from, n)
	case 2:
		putValues[uint16](dst, stride, from, n)
	case 4:
		putValues[uint32](dst, stride, from, n)
	case 8:
		putValues[uint64](dst, stride, from, n)
	case 16:
		putValues[[2]uint64](dst, stride, from, n)
	default:
		values := unsafe.Slice((*byte)(from), n*width)
		for i := range n {
			copy(dst[i*stride:], values[i*width:(i+1)*width])
		}
	}
}

func putValues[T any](dst []byte, stride int, src unsafe.Pointer, n int) {
	_ = dst[(n-1)*stride+int(unsafe.Sizeof(*new(T)))-1]
	to := unsafe.Pointer(unsafe.SliceData(dst))
	for i, v := range unsafe.Slice((*T)(src), n) {
		*(*T)(unsafe.Add(to, i*stride)) = v
	}
}

// unpack copies rows of a strip to columns. Long runs are copied directly; other rows are first collected in a block, so that their
// cache misses overlap.
func unpack(parts []part, rows []piece) {
	var block [stripBlock * stripBytes]byte
	scratch := unsafe.Pointer(&block)
	w := windowOf(parts)
	n, at := 0, 0
	for batch := range ahead(rows, w.src, w.stride) {
		for i := range batch {
			q := &batch[i]
			from := unsafe.Add(w.src[q.src], int(q.start)*w.stride-w.skip)
			if int(q.n) >= stripBlock {
				w.columns(scratch, w.size, n, at)
				w.columns(from, w.stride, int(q.n), at+n)
				n, at = 0, at+n+int(q.n)
				continue
			}
			for range q.n {
				w.row(unsafe.Add(scratch, n*w.size), from)
				from = unsafe.Add(from, w.stride)
				if n++; n == stripBlock {
					w.columns(scratch, w.size, n, at)
					n, at = 0, at+n
				}
			}
		}
	}
	w.columns(scratch, w.size, n, at)
}

// window is the range of bytes of a strip's row that the wanted columns span.
type window struct {
	parts  []part
	src    []unsafe.Pointer // by source: the first value of the first part
	stride int              // bytes from row to row
	skip   int              // offset of the first part's value in the window
	first  int              // offset of the window in a row
	size   int              // bytes
}

func windowOf(parts []part) window {
	lo, hi := stripBytes, 0
	for i := range parts {
		n := parts[i].node
		lo, hi = min(lo, n.at), max(hi, n.at+n.width)
	}
	n := parts[0].node
	return window{parts: parts, src: parts[0].src, stride: n.strip.stride, skip: n.at - lo, first: lo, size: hi - lo}
}

// row copies the window of one row.
func (w *window) row(dst, src unsafe.Pointer) {
	if w.size == stripBytes {
		*(*[stripBytes]byte)(dst) = *(*[stripBytes]byte)(src)
		return
	}
	copy(unsafe.Slice((*byte)(dst), w.size), unsafe.Slice((*byte)(src), w.size))
}

// columns transposes the windows of n rows, stride bytes apart, to slots of the columns from slot at on.
func (w *window) columns(from unsafe.Pointer, stride, n, at int) {
	for n > 0 {
		k := min(n, stripBlock)
		w.columnsOfBlock(from, stride, k, at)
		from, n, at = unsafe.Add(from, k*stride), n-k, at+k
	}
}

// columnsOfBlock is columns for so few rows that they stay in the L1 cache while one column after the other is copied.
func (w *window) columnsOfBlock(from unsafe.Pointer, stride, n, at int) {
	for parts := w.parts; len(parts) > 0; {
		first, together, done := unsafe.Add(from, parts[0].node.at-w.first), alike(parts), 0
		if together > 1 {
			done = transpose(parts[:together], first, stride, n, at)
		}
		if done < n {
			for i := range parts[:together] {
				c := &parts[i]
				get(c, unsafe.Add(first, done*stride+c.node.at-parts[0].node.at), stride, n-done, at+done)
			}
		}
		parts = parts[together:]
	}
}

// alike is the number of leading columns that transpose handles at once: eight columns of 8 bytes that make up a whole row, or four
// adjacent columns of one width, 4 or 8 bytes. It is 1 if transpose handles none.
func alike(parts []part) int {
	if !cpu.X86.HasAVX2 || len(parts) < 4 {
		return 1
	}
	first, same := parts[0].node, 1
	for same < min(len(parts), 8) {
		if n := parts[same].node; n.width != first.width || n.at != first.at+same*n.width {
			break
		}
		same++
	}
	switch {
	case first.width == 8 && same == 8:
		return 8
	case (first.width == 4 || first.width == 8) && same >= 4:
		return 4
	}
	return 1
}

// transpose copies the values of parts that are alike. It returns the number of rows done, which may be less than n.
func transpose(parts []part, from unsafe.Pointer, stride, n, at int) (done int) {
	width := parts[0].node.width
	if done = n &^ (32/width - 1); done == 0 {
		return 0
	}
	var dst [8]unsafe.Pointer
	for i := range parts {
		dst[i] = unsafe.Pointer(unsafe.SliceData(parts[i].dst[at*width : (at+done)*width]))
	}
	switch {
	case len(parts) == 8:
		transposeLines(&dst, from, done)
	case width == 8:
		transpose64((*[4]unsafe.Pointer)(dst[:]), from, stride, done)
	default:
		transpose32((*[4]unsafe.Pointer)(dst[:]), from, stride, done)
	}
	return done
}

// get copies n values of a column, stride bytes apart, to its slots from slot at on.
func get(c *part, from unsafe.Pointer, stride, n, at int) {
	switch c.node.width {
	case 1:
		getValues[uint8](c, from, stride, n, at)
	case 2:
		getValues[uint16](c, from, stride, n, at)
	case 4:
		getValues[uint32](c, from, stride, n, at)
	case 8:
		getValues[uint64](c, from, stride, n, at)
	case 16:
		getValues[[2]uint64](c, from, stride, n, at)
	default:
		width := c.node.width
		for i := range n {
			copy(c.dst[(at+i)*width:], unsafe.Slice((*byte)(unsafe.Add(from, i*stride)), width))
		}
	}
}

func getValues[T any](c *part, from unsafe.Pointer, stride, n, at int) {
	for i, out := 0, slots[T](c, at, n); i < len(out); i++ {
		out[i] = *(*T)(unsafe.Add(from, i*stride))
	}
}

// slots returns n slots of a column, starting at slot at.
func slots[T any](c *part, at, n int) []T {
	size := int(unsafe.Sizeof(*new(T)))
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(c.dst[at*size:(at+n)*size]))), n)
}

// zeroStripNulls clears the values of nulls of a column in a strip.
func zeroStripNulls(dst, valid []byte, n int, f *form) {
	bits := unsafe.Pointer(unsafe.SliceData(valid))
	for at := 0; at < n; {
		one, run := bitmap.Run(bits, int64(at), n-at)
		for row := at; !one && row < at+run; row++ {
			clear(dst[row*int(f.stride):][:f.width])
		}
		at += run
	}
}
