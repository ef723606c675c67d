// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package assign computes which data node holds which splits and rows. It does no I/O.
package assign

import "math/bits"

// Range is the half-open range [First, End) of splits that one node holds.
type Range struct {
	First int `json:"first"`
	End   int `json:"end"`
}

// Len is the number of splits in the range.
func (r Range) Len() int { return r.End - r.First }

// ByWeight divides the splits, whose weights are given in plan order, into one contiguous range per node.
//
// Each node is due an equal share of the total weight. A split goes to the node whose share contains the split's midpoint, so a node
// holds at most its share and one split more. With fewer splits than nodes, some ranges are empty. If all weights are zero, splits
// are divided by count. The result depends only on the arguments.
func ByWeight(weights []int64, nodes int) []Range {
	ranges := make([]Range, nodes)
	total := sum(weights)
	next, before := 0, uint64(0)
	for i := range ranges {
		first := next
		for next < len(weights) && owner(middle(weights, next, before, total), total, len(weights), nodes) <= i {
			before += uint64(max(weights[next], 0))
			next++
		}
		ranges[i] = Range{First: first, End: next}
	}
	return ranges
}

// middle is twice the position of split i's midpoint in the sum of all weights, or of all counts if total is 0.
func middle(weights []int64, i int, before, total uint64) uint64 {
	if total == 0 {
		return 2*uint64(i) + 1
	}
	return 2*before + uint64(max(weights[i], 0))
}

// owner returns the node whose share contains a position, which is doubled as in the result of middle.
func owner(middle, total uint64, splits, nodes int) int {
	length := 2 * total
	if total == 0 {
		length = 2 * uint64(splits)
	}
	hi, lo := bits.Mul64(middle, uint64(nodes))
	quotient, _ := bits.Div64(hi, lo, length)
	return min(int(quotient), nodes-1)
}

func sum(weights []int64) uint64 {
	var total uint64
	for _, w := range weights {
		total += uint64(max(w, 0))
	}
	return total
}

// Bounds is the half-open range [Start, End) of row indices that one node holds.
// It travels as the two-element array [start, end] of the wire contract.
type Bounds [2]int64

// Len is the number of rows within the bounds.
func (b Bounds) Len() int64 { return b[1] - b[0] }

// BoundsOf converts the row count of each node, known once it has loaded, to bounds in plan order.
func BoundsOf(counts []int64) []Bounds {
	bounds := make([]Bounds, len(counts))
	var start int64
	for i, n := range counts {
		bounds[i] = Bounds{start, start + n}
		start += n
	}
	return bounds
}
