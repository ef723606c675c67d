// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package epoch

// layout maps positions of an epoch to rows.
type layout struct {
	rows    uint64
	clump   uint64 // 0: not shuffled
	perm    Permutation
	regular uint64 // where the short last clump ends in the shuffled order; rows, if no clump is short
	lanes   *laned // order version 2, for which clump is 0; nil: version 1
	missing uint64 // how many rows shorter the last clump is; positions from regular on are shifted by it
	windows windows
}

// single reports whether consecutive positions have single rows, which apply finds.
func (l *layout) single() bool { return l.clump == 1 || l.windows.length > 0 }

// newLayout returns the layout of a valid epoch.
func newLayout(e Epoch) layout {
	if !e.Shuffle || e.Rows == 0 {
		return layout{rows: e.Rows}
	}
	if e.Lanes {
		return layout{rows: e.Rows, lanes: newLaned(e)}
	}
	clumps := ceil(e.Rows, e.Clump)
	perm := newPermutation(clumps, e.Seed, e.Number)
	l := layout{rows: e.Rows, clump: e.Clump, perm: perm, regular: e.Rows, missing: clumps*e.Clump - e.Rows}
	if l.missing > 0 {
		l.regular = perm.Inverse(clumps-1)*e.Clump + (e.Clump - l.missing)
	}
	if e.Window > 0 {
		l.windows = newWindows(e, &l)
	}
	return l
}

// apply replaces positions, which must be within the epoch, by their rows. The layout must be single.
func (l *layout) apply(xs []uint64) {
	if l.windows.length > 0 {
		l.windows.apply(xs)
	}
	if l.clump == 1 {
		l.perm.apply(xs)
		return
	}
	var buffer [block]uint64
	for len(xs) > 0 {
		offsets := buffer[:min(block, len(xs))]
		some := xs[:len(offsets)]
		for i, x := range some {
			if x >= l.regular {
				x += l.missing
			}
			some[i], offsets[i] = x/l.clump, x%l.clump
		}
		l.perm.apply(some)
		for i, offset := range offsets {
			some[i] = some[i]*l.clump + offset
		}
		xs = xs[len(some):]
	}
}

// place fills runs with the rows at the positions [first, first+positions), which must be within the epoch, as far as runs has room. It
// returns the number of runs and of positions that they cover.
func (l *layout) place(runs []Run, first, positions uint64) (n int, placed uint64) {
	if l.lanes != nil {
		return l.lanes.place(runs, first, positions)
	}
	if l.windows.length > 0 {
		return l.placeRows(runs, first, positions)
	}
	if l.clump > 0 {
		return l.placeClumps(runs, first, positions)
	}
	runs[0] = Run{First: first, Rows: positions}
	return 1, positions
}

// placeRows is place for an epoch with windows: it makes one run for each row.
func (l *layout) placeRows(runs []Run, first, positions uint64) (n int, placed uint64) {
	var buffer [block]uint64
	rows := buffer[:min(block, uint64(len(runs)), positions)]
	for i := range rows {
		rows[i] = first + uint64(i)
	}
	l.apply(rows)
	for i, row := range rows {
		runs[i] = Run{First: row, Rows: 1}
	}
	return len(rows), uint64(len(rows))
}

// placeClumps is place for a shuffled epoch without windows: it makes one run for each clump.
func (l *layout) placeClumps(runs []Run, first, positions uint64) (n int, placed uint64) {
	if first >= l.regular {
		first += l.missing
	}
	index, offset := first/l.clump, first%l.clump
	var clumps [32]uint64
	for n < len(runs) && placed < positions {
		// If the short clump is among them, the positions may end in one more clump: the next iteration adds it.
		ahead := min(uint64(len(clumps)), uint64(len(runs)-n), ceil(positions-placed+offset, l.clump))
		l.perm.Fill(clumps[:ahead], index)
		index += ahead
		for _, clump := range clumps[:ahead] {
			first := clump*l.clump + offset
			rows := min((clump+1)*l.clump, l.rows) - first
			runs[n] = Run{First: first, Rows: min(rows, positions-placed)}
			n, placed, offset = n+1, placed+runs[n].Rows, 0
		}
	}
	return n, placed
}
