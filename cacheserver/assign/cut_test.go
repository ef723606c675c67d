// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package assign

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

func TestCut(t *testing.T) {
	const mib = 1 << 20
	tests := []struct {
		name   string
		splits []Size
		nodes  int
		want   []Piece
	}{
		{"no splits", nil, 2, nil},
		{"one node", []Size{{1000, 9 * mib}}, 1, []Piece{{0, 0, 1000}}},
		{"one row group on two nodes", []Size{{1000, 9 * mib}}, 2, []Piece{{0, 0, 500}, {0, 500, 500}}},
		{"one row group on three nodes", []Size{{1000, 9 * mib}}, 3, []Piece{{0, 0, 333}, {0, 333, 333}, {0, 666, 334}}},
		{"one row group that is small", []Size{{1000, mib - 1}}, 2, []Piece{{0, 0, 1000}}},
		{"fewer rows than nodes", []Size{{2, 9 * mib}}, 3, []Piece{{0, 0, 1}, {0, 1, 1}}},
		{"equal row groups", []Size{{1000, 9 * mib}, {1000, 9 * mib}}, 2, []Piece{{0, 0, 1000}, {1, 0, 1000}}},
		{"nearly equal row groups", []Size{{1004, 9 * mib}, {1000, 9 * mib}}, 2, []Piece{{0, 0, 1004}, {1, 0, 1000}}},
		{"three on two nodes", []Size{{1000, 9 * mib}, {1000, 9 * mib}, {1000, 9 * mib}}, 2, []Piece{{0, 0, 1000}, {1, 0, 500}, {1, 500, 500}, {2, 0, 1000}}},
		{"wide rows go by bytes", []Size{{1000, 30 * mib}, {1000, 10 * mib}}, 2, []Piece{{0, 0, 666}, {0, 666, 334}, {1, 0, 1000}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, Cut(tt.splits, tt.nodes)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestSharesAreEqual checks over random plans of large row groups that every row is assigned once, in order, and that shares of rows,
// or of bytes where memory decides, are within 1 % of equal.
func TestSharesAreEqual(t *testing.T) {
	rng := seedtest.New(t)
	for range 2000 {
		splits := make([]Size, 1+rng.IntN(40))
		for i := range splits {
			rows := 100_000 + rng.Int64N(1_000_000)
			splits[i] = Size{Rows: rows, Bytes: rows * (20 + rng.Int64N(1+rng.Int64N(200)))}
		}
		nodes := 1 + rng.IntN(9)
		pieces := Cut(splits, nodes)
		at := Piece{}
		for _, p := range pieces {
			if p.Split != at.Split || p.First != at.First || p.Rows <= 0 {
				t.Fatalf("%v on %d nodes: piece %v where %v is next", splits, nodes, p, at)
			}
			if at.First += p.Rows; at.First == splits[at.Split].Rows {
				at = Piece{Split: at.Split + 1}
			}
		}
		if at != (Piece{Split: len(splits)}) {
			t.Fatalf("%v on %d nodes: rows from %v on are in no piece", splits, nodes, at)
		}
		parts := partsOf(splits, pieces)
		runs := Contiguous(parts, nodes)
		if off := most(parts, runs, Size.rows); off > 0.01 && most(parts, runs, Size.bytes) > 0.01 {
			t.Fatalf("%v on %d nodes: shares %v are off by %.3f", splits, nodes, runs, off)
		}
		if !within(parts, runs, Size.bytes, memoryMargin) {
			t.Fatalf("%v on %d nodes: one of the shares %v has too many bytes", splits, nodes, runs)
		}
	}
}

// most is how far the largest share exceeds an equal share, as a fraction of it.
func most(splits []Size, runs []Range, weight func(Size) int64) (off float64) {
	equal := float64(sum(weigh(splits, weight))) / float64(len(runs))
	for _, r := range runs {
		have := float64(sum(weigh(splits[r.First:r.End], weight)))
		off = max(off, (have-equal)/equal)
	}
	return off
}
