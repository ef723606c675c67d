// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package epoch

import "fmt"

// Split selects a part of n rows: those at positions [floor(From*n/Of), floor(To*n/Of)) of the permutation P(n, Seed, 0), or of the rows
// in order if Shuffle is false. The rows of the part are numbered by position, from 0. Its JSON is that of the wire contract.
//
// It is a plain value. The zero value is invalid: Of must be at least 1.
type Split struct {
	Seed    uint64 `json:"seed"`
	Of      uint64 `json:"of"`
	From    uint64 `json:"from"`
	To      uint64 `json:"to"`
	Shuffle bool   `json:"shuffle"`
}

// Validate returns an error for the first invalid field, with its name on the wire, its value and the values allowed.
func (s Split) Validate() error {
	if s.Of < 1 || s.Of >= limit {
		return fmt.Errorf("split.of = %d: want 1 <= of < 2^62", s.Of)
	}
	if s.To > s.Of {
		return fmt.Errorf("split.to = %d: want from <= to <= of = %d", s.To, s.Of)
	}
	if s.From > s.To {
		return fmt.Errorf("split.from = %d: want 0 <= from <= to = %d", s.From, s.To)
	}
	return nil
}

// Bounds returns the positions [first, end) of the part. s must be valid.
func (s Split) Bounds(rows uint64) (first, end uint64) {
	return scale(s.From, rows, s.Of), scale(s.To, rows, s.Of)
}

// splitting maps the rows of a part to rows of the whole.
type splitting struct {
	shuffle      bool
	perm         Permutation
	first        uint64 // position of the part's row 0
	from, wanted uint64 // as in Cursor
}

// Split makes the cursor's rows those of a part of the given number of rows. s must be valid, and the cursor's data set must have the
// rows of the part. It must be called before Within, which then restricts the rows of the whole.
func (c *Cursor) Split(s Split, rows uint64) {
	first, _ := s.Bounds(rows)
	c.split = &splitting{shuffle: s.Shuffle, first: first, wanted: rows}
	if s.Shuffle && rows > 0 {
		c.split.perm = newPermutation(rows, s.Seed, 0)
	}
}

// next is Next for a cursor over a part.
func (s *splitting) next(c *Cursor, runs []Run, positions uint64) (n int, passed uint64) {
	if !s.shuffle {
		n, passed = c.rows(runs, positions)
		for i := range runs[:n] {
			runs[i].First += s.first
		}
		return pick(runs[:n], s.from, s.wanted), passed
	}
	var some [block]Run
	var buffer [block]uint64
	for positions = min(positions, uint64(len(runs))); passed < positions; {
		found, placed := c.rows(some[:], min(block, positions-passed))
		if placed == 0 {
			break
		}
		rows := buffer[:0] // no more than placed
		for _, r := range some[:found] {
			for row := range r.Rows {
				rows = append(rows, s.first+r.First+row)
			}
		}
		s.perm.apply(rows)
		for _, row := range rows { // every row is stored, without a branch that is mispredicted; see Cursor.singles
			runs[n] = Run{First: row - s.from, Rows: 1}
			if row-s.from < s.wanted {
				n++
			}
		}
		passed += placed
	}
	return n, passed
}
