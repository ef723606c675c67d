// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package epoch

import "slices"

// mixture finds the rows of one part at the positions of a mixture's epoch.
type mixture struct {
	unit   uint64 // positions of one draw
	base   uint64 // number of the draw at position 0
	phases []phase
	part   Epoch // the part's rows, seed and clump; Number is the epoch of the part that rows describes
	rows   layout
	// slots is the permutation of block number `block` of phase number `in`, or nothing if drawing is false.
	drawing bool
	in      int
	block   uint64
	slots   Permutation
	// own are the part's slots in the block, in ascending order, if the phase is sparse.
	own []uint64
}

// NewMixCursor returns a cursor over the rows that part m.Part contributes to a share of the mixture's epoch e, in sequence order.
// Its errors are those of the three Validate methods.
func NewMixCursor(e Epoch, m Mix, s Share) (*Cursor, error) {
	walk := e
	walk.Shuffle = false // Cursor itself finds positions; mixture finds the rows
	c, err := NewCursor(walk, s)
	if err != nil {
		return nil, err
	}
	if err := e.Validate(); err != nil {
		return nil, err
	}
	if err := m.Validate(e); err != nil {
		return nil, err
	}
	part := m.Parts[m.Part]
	c.mix = &mixture{
		unit: m.unit(e), base: e.Number * e.Rows, phases: m.phases(e),
		part: Epoch{Rows: part.Rows, Seed: mix(e.Seed + golden*(m.Part+2)), Shuffle: e.Shuffle, Clump: e.Clump, Window: e.Window},
	}
	c.mix.rows = newLayout(c.mix.part)
	c.wanted = part.Rows
	return c, nil
}

// mixed is Next for a mixture. A position of another part gives no run. Positions that ahead skips are not counted in the limit.
func (c *Cursor) mixed(runs []Run, positions uint64) (n int, passed uint64) {
	positions = min(positions, uint64(len(runs)))
	for walked := uint64(0); walked < positions && c.open(); {
		first, most := c.stretch(positions - walked)
		draw := c.mix.base + first
		if next := c.mix.ahead(draw); next > draw {
			passed += c.skip(next - draw)
			walked++
			continue
		}
		found, placed := c.mix.place(runs[n:], first, most)
		c.next += placed
		n, passed, walked = n+found, passed+placed, walked+placed
	}
	return pick(runs[:n], c.from, c.wanted), passed
}

// skip advances over the positions of the share that are among the next ones of the epoch, which are of other parts. It returns their number,
// which is at least 1, and may leave some for the next call.
func (c *Cursor) skip(positions uint64) (passed uint64) {
	first, most := c.stretch(positions)
	c.next += most
	if c.next < c.end || most == positions {
		return most
	}
	to := min((first+positions)/c.epoch.GlobalBatch, c.full)
	if c.epoch.Tail == Pad {
		to = min(to, c.steps-1) // its positions may wrap
	}
	if to <= c.step {
		return most
	}
	steps := ceil(to-c.step, c.share.Workers)
	c.step += steps * c.share.Workers
	return most + steps*(c.hi-c.lo)
}

// mostSparse is the greatest weight of a part whose slots are found by the inverse of the permutation, if the part has fewer than one in
// sparseFrom of the draws. Other parts' slots are found by looking at each.
const mostSparse, sparseFrom = 1024, 64

// sparse reports whether the part's slots in the phase are found by the inverse.
func (p *phase) sparse() bool { return p.weight <= mostSparse && p.weight < p.total/sparseFrom }

// ahead is a draw, from the given one on, before which none is the part's.
func (m *mixture) ahead(draw uint64) uint64 {
	in := m.phaseOf(draw)
	p := &m.phases[in]
	if p.weight == 0 {
		return p.end
	}
	if !p.sparse() {
		return draw
	}
	index := (draw - p.first) / m.unit
	number, slot := index/p.total, index%p.total
	m.permute(in, number)
	i, found := slices.BinarySearch(m.own, slot)
	if found {
		return draw
	}
	next := p.total // the next block
	if i < len(m.own) {
		next = m.own[i]
	}
	return min(p.first+(number*p.total+next)*m.unit, p.end)
}

// place fills runs with the part's rows at positions from first on, at most the given number, and returns the number of runs and of
// positions that it has passed, which is at least 1. runs has room for one run for each position, and the part has a weight there.
func (m *mixture) place(runs []Run, first, positions uint64) (n int, passed uint64) {
	draw := m.base + first
	in := m.phaseOf(draw)
	p := &m.phases[in]
	positions = min(positions, p.end-draw)
	if p.sparse() {
		positions = min(positions, m.unit)
	}
	index, offset := (draw-p.first)/m.unit, (draw-p.first)%m.unit
	number, slot := index/p.total, index%p.total
	m.permute(in, number)
	if m.unit > 1 {
		positions = min(positions, m.unit-offset)
		mine := m.slots.At(slot) - p.before
		if mine >= p.weight { // also if the slot is of a part before this one, as mine wraps
			return 0, positions
		}
		return m.stretch(runs, p.drawn+(number*p.weight+mine)*m.unit+offset, positions), positions
	}
	var buffer [block]uint64
	slots := buffer[:min(positions, block, p.total-slot)]
	for i := range slots {
		slots[i] = slot + uint64(i)
	}
	m.slots.apply(slots)
	for _, s := range slots { // every draw is stored, without a branch that is mispredicted; see Cursor.singles
		mine := s - p.before
		slots[n] = p.drawn + number*p.weight + mine
		if mine < p.weight {
			n++
		}
	}
	m.singles(runs, slots[:n])
	return n, uint64(len(slots))
}

// phaseOf is the index of the phase of a draw.
func (m *mixture) phaseOf(draw uint64) int {
	in := m.in
	if draw < m.phases[in].first {
		in = 0
	}
	for draw >= m.phases[in].end {
		in++
	}
	return in
}

// permute makes slots the permutation of a block of a phase.
func (m *mixture) permute(in int, number uint64) {
	if !m.drawing || m.in != in || m.block != number {
		m.slots = newPermutation(m.phases[in].total, m.phases[in].seed, number)
		m.drawing, m.in, m.block = true, in, number
		m.find()
	}
}

// find sets own, if the phase is sparse.
func (m *mixture) find() {
	m.own = m.own[:0]
	p := &m.phases[m.in]
	if !p.sparse() {
		return
	}
	for i := range p.weight {
		m.own = append(m.own, m.slots.Inverse(p.before+i))
	}
	slices.Sort(m.own)
}

// turn makes rows the layout of an epoch of the part.
func (m *mixture) turn(number uint64) {
	if m.part.Number != number {
		m.part.Number = number
		m.rows = newLayout(m.part)
	}
}

// singles makes one run of each of the part's draws, which it overwrites.
func (m *mixture) singles(runs []Run, draws []uint64) {
	for i := 0; i < len(draws); {
		begin, number := i, draws[i]/m.part.Rows
		m.turn(number)
		for first := number * m.part.Rows; i < len(draws) && draws[i]-first < m.part.Rows; i++ {
			draws[i] -= first
		}
		if m.rows.single() {
			m.rows.apply(draws[begin:i])
			for j := begin; j < i; j++ {
				runs[j] = Run{First: draws[j], Rows: 1}
			}
			continue
		}
		for j := begin; j < i; j++ {
			m.rows.place(runs[j:j+1], draws[j], 1)
		}
	}
}

// stretch makes runs of consecutive draws of the part and returns their number.
func (m *mixture) stretch(runs []Run, draw, count uint64) (n int) {
	for count > 0 {
		position := draw % m.part.Rows
		m.turn(draw / m.part.Rows)
		found, placed := m.rows.place(runs[n:], position, min(count, m.part.Rows-position))
		n, draw, count = n+found, draw+placed, count-placed
	}
	return n
}
