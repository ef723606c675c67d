// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate

import "github.com/apache/arrow-go/v18/arrow"

// bitmap has a bit for every row of a block, least significant bit first. If the block has fewer rows, the other bits are arbitrary.
type bitmap [blockRows / 64]uint64

func (m *bitmap) bytes() []byte { return arrow.Uint64Traits.CastToBytes(m[:]) }

func (m *bitmap) fill(value bool) {
	word := uint64(0)
	if value {
		word = ^word
	}
	for i := range m {
		m[i] = word
	}
}

func (m *bitmap) invert() {
	for i := range m {
		m[i] = ^m[i]
	}
}

func (m *bitmap) and(other *bitmap) {
	for i := range m {
		m[i] &= other[i]
	}
}

func (m *bitmap) or(other *bitmap) {
	for i := range m {
		m[i] |= other[i]
	}
}

// all reports whether the first n bits are all equal to value.
func (m *bitmap) all(value bool, n int) bool {
	word := uint64(0)
	if value {
		word = ^word
	}
	for _, w := range m[:n/64] {
		if w != word {
			return false
		}
	}
	return n%64 == 0 || (m[n/64]^word)<<(64-n%64) == 0
}

// andInto clears in bits those of the first n that are not set in m.
func (m *bitmap) andInto(bits []byte, n int) {
	for i, b := range m.bytes()[:(n+7)/8] {
		bits[i] &= b
	}
}
