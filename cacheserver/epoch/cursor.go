// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package epoch

// Run is a range of consecutive rows of the data set that are also consecutive in an epoch's sequence. It is identical to rows.Run,
// so that the two packages need not import each other.
type Run = struct {
	First uint64 // row
	Rows  uint64 // at least 1
}

// Cursor iterates over the rows of one share in sequence order, run by run, without allocating.
//
// It is made by NewCursor or NewMixCursor and is not safe for concurrent use. It holds no resources to release.
type Cursor struct {
	epoch  Epoch
	share  Share
	layout layout
	// [lo, hi) is the share within a full step; full counts the full steps and steps all steps.
	lo, hi, full, steps uint64
	// step is the next step to open; [next, end) are the remaining positions of the open one.
	step, next, end uint64
	// from is the first row that the caller wants, wanted the number of rows from there.
	from, wanted uint64
	mix          *mixture   // nil for an epoch of one data set
	split        *splitting // nil unless the rows are those of a part; from and wanted are not used then
}

// NewCursor returns a cursor at the first row of the share. Its errors are those of the two Validate methods.
func NewCursor(e Epoch, s Share) (*Cursor, error) {
	if err := e.Validate(); err != nil {
		return nil, err
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	c := &Cursor{epoch: e, share: s, layout: newLayout(e), full: e.fullSteps(), steps: e.steps(), wanted: e.Rows}
	c.lo, c.hi = Shard(s.Rank, s.World, e.GlobalBatch)
	c.step = c.steps
	if s.StartStep < c.steps {
		c.step = s.first()
	}
	return c, nil
}

// NewRange returns a cursor over rows [lo, hi) in order.
func NewRange(lo, hi uint64) *Cursor {
	return &Cursor{epoch: Epoch{Rows: hi}, layout: layout{rows: hi}, next: lo, end: hi, wanted: hi}
}

// Within restricts Next to rows [lo, hi), those of one data node, and makes it number them from lo.
func (c *Cursor) Within(lo, hi uint64) {
	if c.split != nil {
		c.split.from, c.split.wanted = lo, hi-lo
		return
	}
	c.from, c.wanted = lo, hi-lo
}

// Next advances by at most len(runs) runs and at most the given number of positions. It stores the n runs that are wanted at the
// front of runs, and returns how many positions it advanced by, which is 0 only at the end. Padding positions yield the rows that
// they wrap to. Runs don't extend over the end of a step or a clump. In a mixture and in a shuffled part, it advances by at most len(runs)
// positions.
func (c *Cursor) Next(runs []Run, positions uint64) (n int, passed uint64) {
	if c.split != nil {
		return c.split.next(c, runs, positions)
	}
	return c.rows(runs, positions)
}

// rows is Next for a data set that is not a part of another.
func (c *Cursor) rows(runs []Run, positions uint64) (n int, passed uint64) {
	if c.mix != nil {
		return c.mixed(runs, positions)
	}
	if c.layout.single() {
		return c.singles(runs, positions)
	}
	for n < len(runs) && passed < positions && c.open() {
		first, most := c.stretch(positions - passed)
		k, placed := c.layout.place(runs[n:], first, most)
		c.next += placed
		n, passed = n+k, passed+placed
	}
	return pick(runs[:n], c.from, c.wanted), passed
}

// pick moves the parts of runs within [from, from+wanted) to the front, numbered from from, and returns their number.
func pick(runs []Run, from, wanted uint64) (n int) {
	for _, r := range runs {
		lo, hi := max(r.First, from), min(r.First+r.Rows, from+wanted)
		if lo < hi {
			runs[n] = Run{First: lo - from, Rows: hi - lo}
			n++
		}
	}
	return n
}

// singles is Next for rows that are shuffled individually. They are permuted in blocks, however small the share of a step is.
func (c *Cursor) singles(runs []Run, positions uint64) (n int, passed uint64) {
	var buffer [block]uint64
	from, wanted := c.from, c.wanted
	for positions = min(positions, uint64(len(runs))); passed < positions; {
		rows := c.positions(buffer[:min(block, positions-passed)])
		if len(rows) == 0 {
			break
		}
		c.layout.apply(rows)
		for _, row := range rows {
			// Every row is stored, but n advances only past wanted ones: with two nodes a branch would be mispredicted half the time.
			runs[n] = Run{First: row - from, Rows: 1}
			if row-from < wanted {
				n++
			}
		}
		passed += uint64(len(rows))
	}
	return n, passed
}

// positions fills dst with the next positions, fewer if the share ends.
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

// open makes [next, end) non-empty; if it is empty, it opens the share's next step that has positions.
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

// openFull opens a full step, or skips all full steps at once if the share of each is empty.
func (c *Cursor) openFull() {
	if c.lo == c.hi {
		c.step += ceil(c.full-c.step, c.share.Workers) * c.share.Workers
		return
	}
	first := c.step * c.epoch.GlobalBatch
	c.next, c.end = first+c.lo, first+c.hi
	c.step += c.share.Workers
}

// stretch returns the next positions of the open step, at most the given number. They are consecutive within the epoch: the stretch
// ends where positions wrap.
func (c *Cursor) stretch(most uint64) (first, positions uint64) {
	first, most = c.next, min(most, c.end-c.next)
	if first >= c.epoch.Rows {
		first %= c.epoch.Rows
	}
	return first, min(most, c.epoch.Rows-first)
}
