// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package order

// Cursor walks the rows of one share in sequence order, in blocks and without allocating.
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
	c := &Cursor{epoch: e, share: s, layout: rows, full: e.fullSteps(), steps: e.steps()}
	c.lo, c.hi = Shard(s.Rank, s.World, e.GlobalBatch)
	c.step = c.steps
	if s.StartStep < c.steps {
		c.step = s.first()
	}
	return c, nil
}

// Next fills rows with the next rows of the share and returns how many; fewer than len(rows) only at the
// end, 0 once nothing is left. Padding comes as the rows it wraps to.
func (c *Cursor) Next(rows []uint64) int {
	filled := 0
	for filled < len(rows) && c.open() {
		n := int(min(uint64(len(rows)-filled), c.end-c.next))
		c.place(rows[filled:filled+n], c.next)
		c.next += uint64(n)
		filled += n
	}
	c.layout.settle(rows[:filled])
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

// place writes what stands at the positions from first on, which wrap at the end of the epoch.
func (c *Cursor) place(rows []uint64, first uint64) {
	total := c.epoch.Rows
	for len(rows) > 0 {
		position := first
		if position >= total {
			position %= total
		}
		n := int(min(uint64(len(rows)), total-position))
		c.layout.place(rows[:n], position)
		rows, first = rows[n:], first+uint64(n)
	}
}
