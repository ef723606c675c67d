// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package assign decides, by arithmetic alone, which data node holds which splits and which rows.
package assign

import "math/bits"

// Range is the half-open range [First, End) of splits that one node holds.
type Range struct {
	First int `json:"first"`
	End   int `json:"end"`
}

// Len is the number of splits in the range.
func (r Range) Len() int { return r.End - r.First }

// ByWeight cuts the splits, given by weight in plan order, into one contiguous range a node.
//
// A split goes to the node on whose equal share of the total weight its middle falls, so a node holds at
// most its share and one split more. Fewer splits than nodes leaves nodes with empty ranges. Splits without
// weight (all zero) are dealt by count. The result depends on nothing but the arguments.
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

// middle is twice the position of a split's centre on the line of all weights, or of all counts.
func middle(weights []int64, i int, before, total uint64) uint64 {
	if total == 0 {
		return 2*uint64(i) + 1
	}
	return 2*before + uint64(max(weights[i], 0))
}

// owner maps a doubled position on the line to the node whose share it falls on.
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

// BoundsOf turns each node's row count, known once it has loaded, into row indices in plan order.
func BoundsOf(counts []int64) []Bounds {
	bounds := make([]Bounds, len(counts))
	var start int64
	for i, n := range counts {
		bounds[i] = Bounds{start, start + n}
		start += n
	}
	return bounds
}
