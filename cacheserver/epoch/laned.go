// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package epoch

import (
	"math/bits"
	"slices"
)

// lanes is the number of ranges that the rows are divided into in order version 2 (docs/order.md, Lanes), and leastLaned the least global
// batch, with which each full step has rows of each range.
const (
	lanes      = 32
	leastLaned = 2 * lanes
)

// laned maps positions of an epoch in order version 2 to rows. Each of the slots has one range of the rows, another one in each epoch. It is
// not safe for concurrent use.
type laned struct {
	slots
	batch   uint64
	layouts [lanes]layout // order of the rows of each slot's range
	slot    uint64        // slot of the last placed position: the next search begins there
}

// slots says which range of the rows each slot has in an epoch.
type slots struct {
	rows   uint64            // at least 1
	before [lanes + 1]uint64 // rows of the slots before each
	number [lanes]uint64     // of each slot's range
	first  [lanes]uint64     // first row of each slot's range
}

func newSlots(e Epoch) slots {
	s := slots{rows: e.Rows}
	ranges := newPermutation(lanes, mix(e.Seed+1), e.Number)
	for slot := range uint64(lanes) {
		s.number[slot] = ranges.At(slot)
		lo, hi := Shard(s.number[slot], lanes, e.Rows)
		s.first[slot], s.before[slot+1] = lo, s.before[slot]+hi-lo
	}
	return s
}

// size is the number of rows of a slot's range.
func (s *slots) size(slot int) uint64 { return s.before[slot+1] - s.before[slot] }

// edge is the number of rows that the first positions, at most s.rows, take from the slots before the given one.
func (s *slots) edge(positions, slot uint64) uint64 { return scale(positions, s.before[slot], s.rows) }

// newLaned returns the layout of a valid epoch with rows.
func newLaned(e Epoch) *laned {
	l := &laned{slots: newSlots(e), batch: e.GlobalBatch}
	for slot, number := range l.number {
		l.layouts[slot] = newLayout(Epoch{Rows: l.size(slot), Seed: mix(e.Seed + golden*(number+2)), Number: e.Number, Shuffle: true, Clump: e.Clump, Window: e.Window})
	}
	return l
}

// place is layout.place; the runs are of one slot.
func (l *laned) place(runs []Run, first, positions uint64) (n int, placed uint64) {
	begin := first - first%l.batch
	end, offset := min(begin+l.batch, l.rows), first-begin
	for {
		taken, next := l.edge(begin, l.slot), l.edge(begin, l.slot+1) // of earlier steps
		start, after := l.edge(end, l.slot)-taken, l.edge(end, l.slot+1)-next
		switch {
		case offset < start:
			l.slot--
		case offset >= after:
			l.slot++
		default:
			n, placed = l.layouts[l.slot].place(runs, next-taken+offset-start, min(positions, after-offset))
			for i := range runs[:n] {
				runs[i].First += l.first[l.slot]
			}
			return n, placed
		}
	}
}

// LanedRows returns the ranges of rows that have all rows of a share in order version 2. e and s must be valid.
func (e Epoch) LanedRows(s Share) (ranges [][2]uint64) {
	if e.Rows == 0 {
		return nil
	}
	slots, parts := newSlots(e), e.partsOfSteps(s)
	for slot := range lanes {
		if slices.ContainsFunc(parts, func(p stepPart) bool { return slots.meet(slot, p) }) {
			ranges = append(ranges, [2]uint64{slots.first[slot], slots.first[slot] + slots.size(slot)})
		}
	}
	return ranges
}

// stepPart is the positions [lo, hi) of the step that has the positions [begin, end) of the epoch.
type stepPart struct {
	begin, end, lo, hi uint64
	full               bool // the same part of every full step has these positions, shifted by whole steps
}

// partsOfSteps returns a share's part of each full step, and of the last step if it is shorter or padded.
func (e Epoch) partsOfSteps(s Share) (parts []stepPart) {
	batch, last := e.GlobalBatch, e.Rows%e.GlobalBatch
	begin := e.Rows - last
	lo, hi := Shard(s.Rank, s.World, batch)
	if begin > 0 {
		parts = append(parts, stepPart{0, batch, lo, hi, begin > batch})
	}
	switch {
	case last == 0 || e.Tail == Drop:
	case e.Tail == Keep:
		lo, hi = Shard(s.Rank, s.World, last)
		parts = append(parts, stepPart{begin, e.Rows, lo, hi, false})
	case begin == 0: // its positions may wrap several times
		parts = append(parts, stepPart{0, e.Rows, 0, e.Rows, false})
	default:
		parts = append(parts, stepPart{begin, e.Rows, lo, min(hi, last), false}, stepPart{0, batch, max(lo, last) - last, max(hi, last) - last, false})
	}
	return parts
}

// meet reports whether a slot has positions of a part of a step, or of full steps may have some: in these, a slot begins at batch*before/rows,
// rounded down in some and up in others.
func (s *slots) meet(slot int, p stepPart) bool {
	if p.lo >= p.hi || s.size(slot) == 0 {
		return false
	}
	if p.full {
		return less(p.end, s.before[slot], p.hi, s.rows) && less(p.lo, s.rows, p.end, s.before[slot+1])
	}
	start := s.edge(p.end, uint64(slot)) - s.edge(p.begin, uint64(slot))
	after := s.edge(p.end, uint64(slot)+1) - s.edge(p.begin, uint64(slot)+1)
	return max(start, p.lo) < min(after, p.hi)
}

// less reports whether a*b < c*d.
func less(a, b, c, d uint64) bool {
	high, low := bits.Mul64(a, b)
	otherHigh, otherLow := bits.Mul64(c, d)
	return high < otherHigh || high == otherHigh && low < otherLow
}
