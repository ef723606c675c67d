// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package chunk

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
func (p *plan) fillStrips(nodes []*node) {
	if !p.packed && !p.clean {
		return
	}
	i := 0
	for _, n := range nodes {
		if n.strip != nil {
			parts := &p.parts[n.strip.id]
			*parts = append(*parts, part{node: n, dst: p.body[p.homes[i+1]:], src: p.lanes[n.id].a})
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

// unpack copies rows of a strip to columns. It takes the addresses of a block of rows first: the loads from them
// do not wait for each other, so that their cache misses overlap.
func unpack(parts []part, rows []piece) {
	var block [stripBlock]unsafe.Pointer
	first, stride := &parts[0], parts[0].node.strip.stride
	n, at := 0, 0
	for i := range rows {
		q := &rows[i]
		from := unsafe.Add(first.src[q.src], int(q.start)*stride)
		for k := range int(q.n) {
			block[n] = unsafe.Add(from, k*stride)
			if n++; n == stripBlock {
				unpackBlock(parts, block[:], at)
				n, at = 0, at+n
			}
		}
	}
	unpackBlock(parts, block[:n], at)
}

// unpackBlock copies rows, given by where their values of the first part lie, to slots at and after.
func unpackBlock(parts []part, rows []unsafe.Pointer, at int) {
	origin := parts[0].node.at
	for len(parts) > 0 {
		width, together := parts[0].node.width, 1
		if len(parts) >= 4 && parts[1].node.width == width && parts[2].node.width == width && parts[3].node.width == width {
			together = 4
		}
		four := parts[:together]
		parts = parts[together:]
		switch width {
		case 1:
			getValues[uint8](four, rows, origin, at)
		case 2:
			getValues[uint16](four, rows, origin, at)
		case 4:
			getValues[uint32](four, rows, origin, at)
		case 8:
			getValues[uint64](four, rows, origin, at)
		case 16:
			getValues[[2]uint64](four, rows, origin, at)
		default:
			getBytes(four, rows, origin, at)
		}
	}
}

// getValues copies the values of one part or, in one go over the rows, of four.
func getValues[T any](parts []part, rows []unsafe.Pointer, origin, at int) {
	if len(parts) < 4 {
		out, off := slots[T](&parts[0], at, len(rows)), parts[0].node.at-origin
		for i, row := range rows {
			out[i] = *(*T)(unsafe.Add(row, off))
		}
		return
	}
	n := len(rows)
	a, b, c, d := slots[T](&parts[0], at, n), slots[T](&parts[1], at, n), slots[T](&parts[2], at, n), slots[T](&parts[3], at, n)
	w, x, y, z := parts[0].node.at-origin, parts[1].node.at-origin, parts[2].node.at-origin, parts[3].node.at-origin
	for i, row := range rows {
		a[i] = *(*T)(unsafe.Add(row, w))
		b[i] = *(*T)(unsafe.Add(row, x))
		c[i] = *(*T)(unsafe.Add(row, y))
		d[i] = *(*T)(unsafe.Add(row, z))
	}
}

// slots is n slots of a column from slot at on.
func slots[T any](c *part, at, n int) []T {
	size := int(unsafe.Sizeof(*new(T)))
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(c.dst[at*size:(at+n)*size]))), n)
}

// getBytes is getValues for widths that no register has.
func getBytes(parts []part, rows []unsafe.Pointer, origin, at int) {
	for i := range parts {
		c := &parts[i]
		width := c.node.width
		for k, row := range rows {
			copy(c.dst[(at+k)*width:], unsafe.Slice((*byte)(unsafe.Add(row, c.node.at-origin)), width))
		}
	}
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
