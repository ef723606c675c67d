// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import "slices"

// ColumnBytes is the size of each column in the chunks' bodies, by column of the layout's schema.
func (r *Rows) ColumnBytes() []int64 { return slices.Clone(r.columns) }

// MeanBytes is the mean size of a row of a projection in the chunks' bodies.
func (r *Rows) MeanBytes(p *Projection) int64 {
	total := int64(0)
	for _, c := range p.columns {
		if c < len(r.columns) {
			total += r.columns[c]
		} else {
			total += 4 * r.Len()
		}
	}
	return total / max(r.Len(), 1)
}

// countColumns adds the columns of a chunk to the sizes of the columns.
func (r *Rows) countColumns(c *Chunk) {
	for i, column := range r.layout.columns {
		for _, s := range c.spans[column.buffers[0]:column.buffers[1]] {
			r.columns[i] += padded(s.length)
		}
	}
}
