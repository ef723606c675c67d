// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import "slices"

// ColumnBytes is the size of each column in messages, by column of the layout's schema.
func (r *Rows) ColumnBytes() []int64 { return slices.Clone(r.columns) }

// MeanBytes is the mean size of a row of a projection in messages.
func (r *Rows) MeanBytes(p *Projection) int64 {
	total := int64(0)
	for _, c := range p.columns {
		if c < len(r.columns) {
			total += r.columns[c]
		} else {
			total += 4 * r.Len()
		}
	}
	for _, n := range p.narrow {
		total -= r.values[n.id] * int64(r.layout.nodes[n.id].width-n.width)
	}
	return total / max(r.Len(), 1)
}

// countColumns adds the columns of a chunk to the sizes of the columns.
func (r *Rows) countColumns(c *Chunk) {
	for i := range r.layout.columns {
		before := r.columns[i]
		for _, n := range r.layout.nodesOf(i) {
			for b, s := range c.spans[n.buf : n.buf+n.kind.buffers()] {
				if n.integer && b == 1 {
					values := s.length / int64(c.forms[n.id].width)
					r.values[n.id] += values
					s.length = values * int64(n.width)
				}
				r.columns[i] += padded(s.length)
			}
		}
		r.sent += r.columns[i] - before
	}
}
