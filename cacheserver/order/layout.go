// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package order

// layout maps positions of an epoch to rows. place handles a run of positions; settle finishes rows that
// place has filled, so that single rows are permuted many at a time whatever the runs' lengths.
type layout struct {
	rows    uint64
	clump   uint64 // 0: not shuffled
	perm    Permutation
	regular uint64 // positions before it lie in the clumps before the short one and within it
	missing uint64 // rows by which the last clump is short; positions from regular on shift by it
}

func newLayout(e Epoch) (layout, error) {
	if !e.Shuffle || e.Rows == 0 {
		return layout{rows: e.Rows}, nil
	}
	clumps := ceil(e.Rows, e.Clump)
	perm, err := NewPermutation(clumps, e.Seed, e.Number)
	if err != nil {
		return layout{}, err
	}
	l := layout{rows: e.Rows, clump: e.Clump, perm: perm, regular: e.Rows, missing: clumps*e.Clump - e.Rows}
	if l.missing > 0 {
		l.regular = perm.Inverse(clumps-1)*e.Clump + (e.Clump - l.missing)
	}
	return l, nil
}

// place fills rows for the positions from first on, all of which lie within the epoch. Shuffled single rows
// get their position for now; settle permutes them.
func (l *layout) place(rows []uint64, first uint64) {
	if l.clump > 1 {
		l.placeClumps(rows, first)
		return
	}
	run(rows, first)
}

// settle permutes the single rows that place has left as positions.
func (l *layout) settle(rows []uint64) {
	if l.clump == 1 {
		l.perm.apply(rows)
	}
}

// placeClumps copies runs of rows, clump by clump.
func (l *layout) placeClumps(rows []uint64, first uint64) {
	if first >= l.regular {
		first += l.missing
	}
	index, offset := first/l.clump, first%l.clump
	var clumps [32]uint64
	for len(rows) > 0 {
		// A short clump lets one more clump begin within these rows; the next turn takes that one.
		ahead := min(uint64(len(clumps)), ceil(uint64(len(rows))+offset, l.clump))
		l.perm.Fill(clumps[:ahead], index)
		index += ahead
		for _, clump := range clumps[:ahead] {
			start := clump * l.clump
			end := min(start+l.clump, l.rows)
			n := int(min(uint64(len(rows)), end-start-offset))
			run(rows[:n], start+offset)
			rows, offset = rows[n:], 0
		}
	}
}

func run(rows []uint64, first uint64) {
	for i := range rows {
		rows[i] = first + uint64(i)
	}
}
