// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package assign

import "math/bits"

// Size is the size of a split, which decides the node that holds it.
type Size struct {
	Rows  int64 // before deletes and filter
	Bytes int64 // estimate of the bytes in memory
}

// Piece is the range of rows [First, First+Rows) of a split.
type Piece struct {
	Split int
	First int64
	Rows  int64
}

const (
	// rowsMargin bounds how far a node's rows may exceed an equal share: by share/rowsMargin.
	rowsMargin = 100
	// memoryMargin bounds how far a node's bytes may exceed an equal share when rows are divided equally: by share/memoryMargin.
	memoryMargin = 20
	// cutMargin is the tolerance for a split's edge near the end of a share: within share/cutMargin of it, no cut is made.
	cutMargin = 200
	// cutBytes is the minimum size of a split that is cut, since both nodes then read its row group.
	cutBytes = 1 << 20
)

// Cut cuts splits, given in plan order, so that Contiguous gives no node more than 1 % over an equal share: a split of at least 1 MiB is
// cut at the row where the share of one node ends and that of the next begins. The pieces are in plan order and cover all rows. The
// result depends only on the arguments.
func Cut(splits []Size, nodes int) []Piece {
	pieces := cutBy(splits, Size.rows, nodes)
	if _, ok := byRows(partsOf(splits, pieces), nodes); ok {
		return pieces
	}
	return cutBy(splits, Size.bytes, nodes)
}

// Contiguous gives every node a contiguous range of splits. It divides rows equally, if no node then exceeds an equal share of the rows by
// more than 1 % and of the bytes by more than 5 %; otherwise it divides bytes equally.
func Contiguous(splits []Size, nodes int) []Range {
	if ranges, ok := byRows(splits, nodes); ok {
		return ranges
	}
	return ByWeight(weigh(splits, Size.bytes), nodes)
}

func byRows(splits []Size, nodes int) (ranges []Range, ok bool) {
	ranges = ByWeight(weigh(splits, Size.rows), nodes)
	return ranges, within(splits, ranges, Size.rows, rowsMargin) && within(splits, ranges, Size.bytes, memoryMargin)
}

func (s Size) rows() int64  { return s.Rows }
func (s Size) bytes() int64 { return s.Bytes }

// Part returns the size of some rows of the split; bytes are scaled in proportion.
func (s Size) Part(rows int64) Size {
	if rows == s.Rows {
		return s
	}
	return Size{Rows: rows, Bytes: max(int64(share(uint64(max(s.Bytes, 0)), uint64(rows), uint64(s.Rows))), 1)}
}

func partsOf(splits []Size, pieces []Piece) []Size {
	parts := make([]Size, len(pieces))
	for i, p := range pieces {
		parts[i] = splits[p.Split].Part(p.Rows)
	}
	return parts
}

func weigh(splits []Size, weight func(Size) int64) []int64 {
	weights := make([]int64, len(splits))
	for i, s := range splits {
		weights[i] = weight(s)
	}
	return weights
}

// within reports whether no share exceeds an equal one by more than 1/margin of it.
func within(splits []Size, ranges []Range, weight func(Size) int64, margin uint64) bool {
	equal := sum(weigh(splits, weight)) / uint64(len(ranges))
	for _, r := range ranges {
		if sum(weigh(splits[r.First:r.End], weight)) > equal+equal/margin+1 {
			return false
		}
	}
	return true
}

// cutBy cuts splits where equal shares of a weight end.
func cutBy(splits []Size, weight func(Size) int64, nodes int) []Piece {
	total := sum(weigh(splits, weight))
	var pieces []Piece
	before := uint64(0) // weight of the splits before this one
	node := uint64(1)   // node whose share begins next
	for i, s := range splits {
		w, first := uint64(max(weight(s), 0)), int64(0)
		for ; node < uint64(nodes) && share(total, node, uint64(nodes)) < before+w; node++ {
			into := share(total, node, uint64(nodes)) - before // the boundary of the share lies in this split
			at := int64(share(uint64(s.Rows), into, w))
			margin := total / uint64(nodes) / cutMargin
			if s.Bytes < cutBytes || min(into, w-into) <= margin || at <= first || at >= s.Rows {
				continue
			}
			pieces = append(pieces, Piece{i, first, at - first})
			first = at
		}
		pieces = append(pieces, Piece{i, first, s.Rows - first})
		before += w
	}
	return pieces
}

// share is part/all of a; part is at most all.
func share(a, part, all uint64) uint64 {
	if part == all {
		return a
	}
	hi, lo := bits.Mul64(a, part)
	quotient, _ := bits.Div64(hi, lo, all)
	return quotient
}
