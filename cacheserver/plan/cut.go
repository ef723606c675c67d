// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import "math/bits"

// Split is what matters of a split to deal it to a node.
type Split struct {
	Rows  int64 // before deletes and filter
	Bytes int64 // about what they take in memory
}

// Piece is the rows [First, First+Rows) of a split.
type Piece struct {
	Split int
	First int64
	Rows  int64
}

const (
	// rowsMargin is how much more than an equal share of the rows, as a divisor of the share, a node may hold.
	rowsMargin = 100
	// memoryMargin is how much more than an equal share of the bytes, as a divisor of the share, a node may hold for
	// the sake of equal rows.
	memoryMargin = 20
	// cutMargin is how far from a share's end a split's edge may lie, as a divisor of the share, to be the end as it is.
	cutMargin = 200
	// cutBytes is the size from which on a split is worth a cut: both nodes read its row group.
	cutBytes = 1 << 20
)

// Cut cuts splits, given in plan order, so that Deal gives every node a share within 1 % of equal: a split of at least
// 1 MiB is cut at the row where the share of one node ends and that of the next begins. The pieces are in plan order
// and have all rows. The result depends on nothing but the arguments.
func Cut(splits []Split, nodes int) []Piece {
	pieces := cutBy(splits, Split.rows, nodes)
	if _, ok := dealRows(partsOf(splits, pieces), nodes); ok {
		return pieces
	}
	return cutBy(splits, Split.bytes, nodes)
}

// Deal gives every node a contiguous run of splits: with an equal share of the rows, within 1 %, if that is at most
// 5 % more than an equal share of the bytes for every node, else with an equal share of the bytes.
func Deal(splits []Split, nodes int) []Run {
	if runs, ok := dealRows(splits, nodes); ok {
		return runs
	}
	return Assign(weigh(splits, Split.bytes), nodes)
}

func dealRows(splits []Split, nodes int) (runs []Run, ok bool) {
	runs = Assign(weigh(splits, Split.rows), nodes)
	return runs, within(splits, runs, Split.rows, rowsMargin) && within(splits, runs, Split.bytes, memoryMargin)
}

func (s Split) rows() int64  { return s.Rows }
func (s Split) bytes() int64 { return s.Bytes }

// Part is rows of a split, whose bytes are counted in proportion.
func (s Split) Part(rows int64) Split {
	if rows == s.Rows {
		return s
	}
	return Split{Rows: rows, Bytes: max(int64(share(uint64(max(s.Bytes, 0)), uint64(rows), uint64(s.Rows))), 1)}
}

func partsOf(splits []Split, pieces []Piece) []Split {
	parts := make([]Split, len(pieces))
	for i, p := range pieces {
		parts[i] = splits[p.Split].Part(p.Rows)
	}
	return parts
}

func weigh(splits []Split, weight func(Split) int64) []int64 {
	weights := make([]int64, len(splits))
	for i, s := range splits {
		weights[i] = weight(s)
	}
	return weights
}

// within reports whether no share is larger than an equal one by more than its margin'th part.
func within(splits []Split, runs []Run, weight func(Split) int64, margin uint64) bool {
	equal := sum(weigh(splits, weight)) / uint64(len(runs))
	for _, r := range runs {
		if sum(weigh(splits[r.First:r.End], weight)) > equal+equal/margin+1 {
			return false
		}
	}
	return true
}

// cutBy cuts splits at the ends of equal shares of a weight.
func cutBy(splits []Split, weight func(Split) int64, nodes int) []Piece {
	total := sum(weigh(splits, weight))
	var pieces []Piece
	before := uint64(0) // weight of the splits that are done
	node := uint64(1)   // whose share begins next
	for i, s := range splits {
		w, first := uint64(max(weight(s), 0)), int64(0)
		for ; node < uint64(nodes) && share(total, node, uint64(nodes)) < before+w; node++ {
			into := share(total, node, uint64(nodes)) - before // lies in the split
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

// share is a*part/all; part is at most all.
func share(a, part, all uint64) uint64 {
	if part == all {
		return a
	}
	hi, lo := bits.Mul64(a, part)
	quotient, _ := bits.Div64(hi, lo, all)
	return quotient
}
