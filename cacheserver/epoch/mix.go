// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package epoch

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// Unit is what one draw of a mixture decides.
type Unit string

// The units of a mixture.
const (
	RowUnit   Unit = "row"   // every row is drawn by itself
	BatchUnit Unit = "batch" // all rows of a step are of one part
)

// Limits of a mixture.
const (
	mostParts  = 256
	mostPhases = 64
	leastDense = 1 << 20 // draws for each of a part whose draws are found by looking at all; see mostSparse
)

// Part is one data set of a mixture.
type Part struct {
	Rows    uint64   `json:"rows"`    // at least 1, below 2^62
	Weights []uint64 `json:"weights"` // by phase; 0 leaves the part out of a phase, but not of all of them
}

// Mix divides the positions of an epoch among parts (docs/order.md, Mixtures). The Epoch beside it describes the mixture: its Rows are
// the number of positions, and Seed, Shuffle and Clump apply to the rows of every part.
//
// It is a plain value, safe for concurrent use; the zero value is invalid.
type Mix struct {
	Part   uint64   `json:"part"`             // index of the part whose rows are read
	Parts  []Part   `json:"parts"`            // 1 to 256
	Phases []uint64 `json:"phases,omitempty"` // draws of each phase but the last, which does not end; at most 63
	Unit   Unit     `json:"unit"`
}

// Validate returns an error for the first invalid field, with its name on the wire, its value and the values allowed. Apart
// from its Rows, e must be valid.
func (m Mix) Validate(e Epoch) error {
	if e.Lanes {
		return errors.New("order = 2: mixtures have order version 1 alone")
	}
	if m.Unit != RowUnit && m.Unit != BatchUnit {
		return fmt.Errorf("unit = %q: want %q or %q", string(m.Unit), RowUnit, BatchUnit)
	}
	if e.Rows >= limit {
		return fmt.Errorf("length = %d: want length < 2^62", e.Rows)
	}
	unit := m.unit(e)
	if e.Rows%unit != 0 {
		return fmt.Errorf("length = %d: want a multiple of global_batch = %d with unit %q, such as %d", e.Rows, unit, BatchUnit, nearest(e.Rows, unit))
	}
	if n := len(m.Parts); n < 1 || n > mostParts {
		return fmt.Errorf("parts: %d, want 1 to %d", n, mostParts)
	}
	if m.Part >= uint64(len(m.Parts)) {
		return fmt.Errorf("part = %d: want 0 <= part < %d, the number of parts", m.Part, len(m.Parts))
	}
	if high, low := bits.Mul64(e.Number, e.Rows); high > 0 || low > limit-e.Rows {
		return fmt.Errorf("epoch = %d: want (epoch + 1) * length <= 2^62 with length = %d", e.Number, e.Rows)
	}
	if n := len(m.Phases) + 1; n > mostPhases {
		return fmt.Errorf("phases: %d, want at most %d", n-1, mostPhases-1)
	}
	for i, p := range m.Parts {
		if err := m.validatePart(p); err != nil {
			return fmt.Errorf("parts[%d].%w", i, err)
		}
	}
	return m.validatePhases(unit)
}

func (m Mix) validatePart(p Part) error {
	if p.Rows < 1 || p.Rows >= limit {
		return fmt.Errorf("rows = %d: want 1 <= rows < 2^62; leave out a part without rows", p.Rows)
	}
	if len(p.Weights) != len(m.Phases)+1 {
		return fmt.Errorf("weights: %d, want %d, one for each phase", len(p.Weights), len(m.Phases)+1)
	}
	used := false
	for j, w := range p.Weights {
		if w >= limit {
			return fmt.Errorf("weights[%d] = %d: want less than 2^62", j, w)
		}
		used = used || w > 0
	}
	if !used {
		return errors.New("weights: all are 0; leave the part out, or give it a weight of at least 1 in a phase")
	}
	return nil
}

// validatePhases checks the sums of weights, and that phases end with a multiple of them.
func (m Mix) validatePhases(unit uint64) error {
	var draws uint64
	for j := range len(m.Phases) + 1 {
		total := uint64(0)
		for _, p := range m.Parts {
			if total += p.Weights[j]; total >= limit {
				return fmt.Errorf("weights of phase %d: their sum is 2^62 or more, want less", j)
			}
		}
		high, all := bits.Mul64(total, unit)
		if total == 0 || high > 0 || all >= limit {
			return fmt.Errorf("weights of phase %d: their sum is %d, want at least 1 and, times the %d rows of a draw, less than 2^62", j, total, unit)
		}
		if own := m.Parts[m.Part].Weights[j]; own > mostSparse && total/own > leastDense {
			return fmt.Errorf("weights of phase %d: %d of %d for parts[%d]: want at least one in %d, or at most %d, since data nodes look at every draw to find the part's", j, own, total, m.Part, leastDense, mostSparse)
		}
		if j == len(m.Phases) {
			return nil
		}
		n := m.Phases[j]
		if n == 0 || n%all != 0 {
			return fmt.Errorf("phases[%d] = %d: want a multiple of %d, the sum of the weights times the rows of a draw, such as %d", j, n, all, nearest(n, all))
		}
		if n >= limit || draws+n >= limit {
			return fmt.Errorf("phases[%d] = %d: want the sum of all phases to be less than 2^62", j, n)
		}
		draws += n
	}
	return nil
}

// nearest is the multiple of m, at least m itself, that is nearest to n.
func nearest(n, m uint64) uint64 {
	down := max(n/m, 1) * m
	if n > down && n-down > m/2 {
		return down + m
	}
	return down
}

// unit is the number of positions of one draw.
func (m Mix) unit(e Epoch) uint64 {
	if m.Unit == BatchUnit {
		return e.GlobalBatch
	}
	return 1
}

// Cost is about how many evaluations of a permutation it takes to find the part's rows at a position, in the phase that takes the most. A
// permutation of few elements takes many for each, since it is one of 4096 elements of which others are skipped.
func (m Mix) Cost(e Epoch) uint64 {
	var row uint64
	if e.Shuffle { // an epoch of the part may begin with each draw
		rows := m.Parts[m.Part].Rows
		row = 2*walkLength(ceil(rows, e.Clump)) + newEpoch
		if e.Window > 0 { // as may a window
			row += walkLength(min(e.windowRows(rows), rows)) + newEpoch
		}
	}
	most := uint64(1)
	for _, p := range m.phases(e) {
		if p.weight == 0 {
			continue
		}
		draw := walkLength(p.total)
		if p.sparse() {
			draw = scale(p.weight, 2*draw, p.total)
		}
		most = max(most, draw/m.unit(e)+scale(p.weight, row, p.total)+1)
	}
	return most
}

// newEpoch is the cost of making a permutation, in evaluations.
const newEpoch = 32

// walkLength is the mean number of evaluations for an element of a permutation of n.
func walkLength(n uint64) uint64 {
	if n <= 1 {
		return 1
	}
	return 1<<max(bits.Len64(n-1), minBits)/n + 1
}

// Estimate is about how many of the positions of a share hold rows of the part, by the weights of the phases that the share is in.
// e, m and s must be valid.
func (m Mix) Estimate(e Epoch, s Share) uint64 {
	first := e.Rows
	if high, start := bits.Mul64(s.StartStep, e.GlobalBatch); high == 0 {
		first = min(first, start)
	}
	base := e.Number * e.Rows
	var drawn uint64
	for _, p := range m.phases(e) {
		lo, hi := max(p.first, base+first), min(p.end, base+e.Rows)
		if lo < hi {
			drawn += scale(p.weight, hi-lo, p.total)
		}
	}
	if first == e.Rows {
		return 0
	}
	return scale(min(drawn, e.Rows-first), e.Count(s), e.Rows-first)
}

// phase is a range of draws with constant weights, as one part sees it.
type phase struct {
	first, end uint64 // draws [first, end) over all epochs; end is the largest integer for the last phase
	total      uint64 // sum of the weights
	before     uint64 // sum of the weights of the parts before this one
	weight     uint64 // of this part
	drawn      uint64 // rows of this part drawn in earlier phases
	seed       uint64 // of the permutations of slots
}

func (m Mix) phases(e Epoch) []phase {
	phases := make([]phase, len(m.Phases)+1)
	var first, drawn uint64
	for j := range phases {
		p := phase{first: first, end: math.MaxUint64, drawn: drawn, seed: mix(e.Seed + 1 + uint64(j))}
		for i, part := range m.Parts {
			if uint64(i) < m.Part {
				p.before += part.Weights[j]
			}
			p.total += part.Weights[j]
		}
		p.weight = m.Parts[m.Part].Weights[j]
		if j < len(m.Phases) {
			p.end = first + m.Phases[j]
			drawn += m.Phases[j] / p.total * p.weight
		}
		phases[j], first = p, p.end
	}
	return phases
}
