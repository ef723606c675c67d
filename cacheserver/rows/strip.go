// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import "unsafe"

// A strip is two or more columns of fixed width that lie row by row in a chunk, so that a row picked at random
// costs one cache miss a strip and not one a column. Messages have them column by column, as Arrow wants it:
// they are copied on the way out. See ADR 8.
type strip struct {
	id     int
	nodes  []*node
	stride int // bytes of a row
}

const (
	stripBytes  = 64 // the most that a row of a strip takes: a cache line
	stripColumn = 16 // the widest column in a strip
	stripBlock  = 64 // rows that are copied column by column at a time: few enough to stay in the L1 cache
)

// findStrips puts columns that follow one another, but for others between them, into strips.
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

// part is one column of a strip while it is copied.
type part struct {
	node *node
	dst  []byte           // starts where its first value goes
	src  []unsafe.Pointer // by source: its first value
}

// fillStrips copies the columns of nodes that lie in strips: into them, or out of them.
func (p *copier) fillStrips(nodes []*node) {
	if !p.packed && !p.clean {
		return
	}
	i := 0
	for _, n := range nodes {
		if n.strip != nil {
			parts := &p.parts[n.strip.id]
			*parts = append(*parts, part{node: n, dst: p.body[p.homes[i+1]:], src: p.buffers[n.id].a})
		}
		i += n.kind.buffers()
	}
	for id := range p.parts {
		parts := p.parts[id]
		switch {
		case len(parts) == 0:
			continue
		case p.packed:
			pack(parts, p.rows)
		default:
			unpack(parts, p.rows)
		}
		clear(parts)
		p.parts[id] = parts[:0]
	}
}

// pack copies rows of columns, all that it has, into their strip.
func pack(parts []part, rows []piece) {
	stride, at := parts[0].node.strip.stride, 0
	for _, q := range rows {
		for done := 0; done < int(q.n); done += stripBlock {
			n := min(int(q.n)-done, stripBlock)
			for _, c := range parts {
				put(c.dst[at:], stride, c.node.width, c.src[q.src], int(q.start)+done, n)
			}
			at += n * stride
		}
	}
	clear(parts[0].dst[at:padded(int64(at))])
}

// put copies n values from slot start on to every stride bytes of dst.
func put(dst []byte, stride, width int, src unsafe.Pointer, start, n int) {
	from := unsafe.Add(src, start*width)
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

// unpack copies rows of a strip to columns. A long run is copied from where it lies; other rows are put together in a
// block first, so that their cache misses overlap.
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

// window is the stretch of a strip's rows that the wanted columns span.
type window struct {
	parts  []part
	src    []unsafe.Pointer // by source: the first part's first value
	stride int              // bytes from row to row
	skip   int              // bytes from where the stretch starts to the first part's value
	first  int              // bytes from where a row starts to where the stretch does
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

// row copies a row's stretch.
func (w *window) row(dst, src unsafe.Pointer) {
	if w.size == stripBytes {
		*(*[stripBytes]byte)(dst) = *(*[stripBytes]byte)(src)
		return
	}
	copy(unsafe.Slice((*byte)(dst), w.size), unsafe.Slice((*byte)(src), w.size))
}

// columns copies the stretches of n rows, which lie stride bytes from each other, to slots at and after.
func (w *window) columns(from unsafe.Pointer, stride, n, at int) {
	for n > 0 {
		k := min(n, stripBlock)
		w.columnsOfBlock(from, stride, k, at)
		from, n, at = unsafe.Add(from, k*stride), n-k, at+k
	}
}

// columnsOfBlock is columns for few enough rows to stay in the L1 cache while column after column is copied.
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

// alike is how many of the first columns transpose takes at once: eight of 8 bytes, which are all of a row, or four of one
// width, of 4 or 8 bytes, that lie one after the other. It is one where it takes none.
func alike(parts []part) int {
	if !hasTranspose || len(parts) < 4 {
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

// transpose copies values of parts that are alike. It returns of how many rows; it may leave some out.
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

// get copies n values of a column, which lie stride bytes from each other, to slots at and after.
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

// slots is n slots of a column from slot at on.
func slots[T any](c *part, at, n int) []T {
	size := int(unsafe.Sizeof(*new(T)))
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(c.dst[at*size:(at+n)*size]))), n)
}

// zeroStripNulls clears the values of nulls of a column in a strip.
func zeroStripNulls(dst, valid []byte, n int, c *node) {
	bits := unsafe.Pointer(unsafe.SliceData(valid))
	for at := 0; at < n; {
		one, run := bitRun(bits, int64(at), n-at)
		for row := at; !one && row < at+run; row++ {
			clear(dst[row*c.strip.stride:][:c.width])
		}
		at += run
	}
}
