// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package epoch

// windowSeed is added to the seed for the permutations within windows, a part of the contract with clients.
const windowSeed = 0xD1B54A32D192ED03

// windows shuffles the rows of each window: of so many clumps that follow each other in a shuffled epoch (docs/order.md, Windows). It is not
// safe for concurrent use. The zero value has no windows.
type windows struct {
	rows    uint64 // of the epoch
	length  uint64 // rows of a window without the short clump; 0: there are no windows
	short   uint64 // where the window with the short clump ends, rows if there is none
	missing uint64 // how many rows fewer that one has
	seed    uint64 // of all permutations
	number  uint64 // added to the index of a window
	// perm is the permutation of the window that is at the positions [first, end), of none at first.
	first, end uint64
	perm       Permutation
}

// newWindows returns the windows of an epoch whose clumps have the given layout.
func newWindows(e Epoch, l *layout) windows {
	w := windows{rows: e.Rows, short: e.Rows, missing: l.missing, seed: mix(e.Seed + windowSeed), number: mix(e.Number)}
	w.length = e.windowRows(e.Rows)
	if l.missing > 0 { // l.regular is where the short clump ends
		last := (l.regular - 1) / w.length
		w.short = min((last+1)*w.length-l.missing, e.Rows)
	}
	return w
}

// windowRows is the number of rows of a window of a valid epoch of so many rows, if no clump in it is short.
func (e Epoch) windowRows(rows uint64) uint64 { return min(e.Window, ceil(rows, e.Clump)) * e.Clump }

// apply replaces positions of the epoch by positions in the sequence of clumps.
func (w *windows) apply(xs []uint64) {
	for len(xs) > 0 {
		if xs[0] < w.first || xs[0] >= w.end {
			w.open(xs[0])
		}
		n := 0
		for n < len(xs) && w.first <= xs[n] && xs[n] < w.end {
			xs[n] -= w.first
			n++
		}
		w.perm.apply(xs[:n])
		for i := range xs[:n] {
			xs[i] += w.first
		}
		xs = xs[n:]
	}
}

// open makes perm that of the window of a position.
func (w *windows) open(position uint64) {
	index, shift, end := position/w.length, uint64(0), w.rows
	if position < w.short {
		end = w.short
	} else {
		index, shift = (position+w.missing)/w.length, w.missing
	}
	w.first = index*w.length - shift
	w.end = min(w.first+w.length, end)
	w.perm = newPermutation(w.end-w.first, w.seed, w.number+index)
}
