// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package epoch

// mixture finds the rows of one part at the positions of a mixture's epoch.
type mixture struct {
	unit   uint64 // positions of one draw
	base   uint64 // number of the draw at position 0
	phases []phase
	part   Epoch // the part's rows, seed and clump; Number is that of rows
	rows   layout
	// slots is the permutation of block number `block` of phase number `in`, or nothing if drawing is false.
	drawing bool
	in      int
	block   uint64
	slots   Permutation
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
		part: Epoch{Rows: part.Rows, Seed: mix(e.Seed + golden*(m.Part+2)), Shuffle: e.Shuffle, Clump: e.Clump},
	}
	c.mix.rows = newLayout(c.mix.part)
	c.wanted = part.Rows
	return c, nil
}

// mixed is Next for a mixture. A position of another part gives no run.
func (c *Cursor) mixed(runs []Run, positions uint64) (n int, passed uint64) {
	for positions = min(positions, uint64(len(runs))); passed < positions && c.open(); {
		first, most := c.stretch(positions - passed)
		found, placed := c.mix.place(runs[n:], first, most)
		c.next += placed
		n, passed = n+found, passed+placed
	}
	return pick(runs[:n], c.from, c.wanted), passed
}

// place fills runs with the part's rows at positions from first on, at most the given number, and returns the number of runs and of
// positions that it has passed, which is at least 1. runs has room for one run for each position.
func (m *mixture) place(runs []Run, first, positions uint64) (n int, passed uint64) {
	draw := m.base + first
	in := m.phaseOf(draw)
	p := &m.phases[in]
	positions = min(positions, p.end-draw)
	if p.weight == 0 {
		return 0, positions
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
	}
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
		if m.rows.clump == 1 {
			m.rows.perm.apply(draws[begin:i])
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
