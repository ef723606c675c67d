// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package epoch

// Run is consecutive rows of the data set that follow each other in a sequence too. It is the same type as rows.Run, to which runs are handed:
// neither package needs the other.
type Run = struct {
	First uint64 // row
	Rows  uint64 // at least 1
}

// Cursor walks the rows of one share in sequence order, run by run and without allocating.
//
// It is made by NewCursor and is for one goroutine at a time. It holds nothing that needs a release.
type Cursor struct {
	epoch  Epoch
	share  Share
	layout layout
	// lo and hi bound the share within a full step; full and steps count the steps.
	lo, hi, full, steps uint64
	// step is the next step to open; next and end bound the positions left of the open one.
	step, next, end uint64
	// from is the first of the rows that are wanted, and wanted how many they are.
	from, wanted uint64
}

// NewCursor stands at the first row of the share. Its errors are those of the two Validate methods.
func NewCursor(e Epoch, s Share) (*Cursor, error) {
	if err := e.Validate(); err != nil {
		return nil, err
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	rows, err := newLayout(e)
	if err != nil {
		return nil, err
	}
	c := &Cursor{epoch: e, share: s, layout: rows, full: e.fullSteps(), steps: e.steps(), wanted: e.Rows}
	c.lo, c.hi = Shard(s.Rank, s.World, e.GlobalBatch)
	c.step = c.steps
	if s.StartStep < c.steps {
		c.step = s.first()
	}
	return c, nil
}

// Within has Next leave out all but rows [lo, hi), which it then counts from lo: those that one data node holds.
func (c *Cursor) Within(lo, hi uint64) {
	c.from, c.wanted = lo, hi-lo
}

// Next walks on by at most len(runs) runs, and at most so many positions. It fills runs with the n of them that are
// wanted, and says how many positions it has passed: none at the end alone. Padding comes as the rows it wraps to. A run
// ends at the latest where a step or a clump does.
func (c *Cursor) Next(runs []Run, positions uint64) (n int, passed uint64) {
	if c.layout.clump == 1 {
		return c.singles(runs, positions)
	}
	for n < len(runs) && passed < positions && c.open() {
		first, most := c.stretch(positions - passed)
		k, placed := c.layout.place(runs[n:], first, most)
		c.next += placed
		n, passed = n+k, passed+placed
	}
	return c.pick(runs[:n]), passed
}

// pick moves what is wanted of runs to the front, and returns how many these are.
func (c *Cursor) pick(runs []Run) (n int) {
	for _, r := range runs {
		lo, hi := max(r.First, c.from), min(r.First+r.Rows, c.from+c.wanted)
		if lo < hi {
			runs[n] = Run{First: lo - c.from, Rows: hi - lo}
			n++
		}
	}
	return n
}

// singles is Next for rows that are shuffled one by one. They are permuted many at a time, whatever a step's share.
func (c *Cursor) singles(runs []Run, positions uint64) (n int, passed uint64) {
	var buffer [block]uint64
	from, wanted := c.from, c.wanted
	for positions = min(positions, uint64(len(runs))); passed < positions; {
		rows := c.positions(buffer[:min(block, positions-passed)])
		if len(rows) == 0 {
			break
		}
		c.layout.perm.apply(rows)
		for _, row := range rows {
			// Every row is written, and the wanted ones are counted: with two nodes a branch would be guessed wrong half the time.
			runs[n] = Run{First: row - from, Rows: 1}
			if row-from < wanted {
				n++
			}
		}
		passed += uint64(len(rows))
	}
	return n, passed
}

// positions fills as much of dst as there are positions left.
func (c *Cursor) positions(dst []uint64) []uint64 {
	filled := dst[:0]
	for len(filled) < len(dst) && c.open() {
		first, n := c.stretch(uint64(len(dst) - len(filled)))
		some := dst[len(filled) : len(filled)+int(n)]
		for i := range some {
			some[i] = first + uint64(i)
		}
		c.next += n
		filled = dst[:len(filled)+int(n)]
	}
	return filled
}

// open makes [next, end) not empty, if need be with the share's next step that has positions.
func (c *Cursor) open() bool {
	for c.next == c.end {
		if c.step >= c.steps {
			return false
		}
		if c.step < c.full {
			c.openFull()
			continue
		}
		first := c.step * c.epoch.GlobalBatch
		lo, hi := Shard(c.share.Rank, c.share.World, c.epoch.size(c.step))
		c.next, c.end = first+lo, first+hi
		c.step += c.share.Workers
	}
	return true
}

// openFull opens a full step, or passes over all of them at once if the share of each is empty.
func (c *Cursor) openFull() {
	if c.lo == c.hi {
		c.step += ceil(c.full-c.step, c.share.Workers) * c.share.Workers
		return
	}
	first := c.step * c.epoch.GlobalBatch
	c.next, c.end = first+c.lo, first+c.hi
	c.step += c.share.Workers
}

// stretch is the next positions of the open step, at most so many, as they lie within the epoch: they wrap at its end.
func (c *Cursor) stretch(most uint64) (first, positions uint64) {
	first, most = c.next, min(most, c.end-c.next)
	if first >= c.epoch.Rows {
		first %= c.epoch.Rows
	}
	return first, min(most, c.epoch.Rows-first)
}
