// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package chunk

// ColumnBytes is what each column takes of the chunks' bodies, by column of the layout's schema.
func (r *Rows) ColumnBytes() []int64 {
	sizes := make([]int64, len(r.layout.columns))
	for _, c := range r.chunks {
		for i := range sizes {
			from, to := c.extent(r.layout, i, i+1)
			sizes[i] += to - from
		}
	}
	return sizes
}
