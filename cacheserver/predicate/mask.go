// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate

import (
	"slices"

	"github.com/apache/arrow-go/v18/arrow/bitutil"
)

// Mask has a bit for every row of a batch; 1 means that the row is kept.
type Mask struct {
	Bits []byte
	N    int
}

// NewMask returns a mask of n rows that are all kept.
func NewMask(n int) *Mask {
	m := &Mask{}
	m.Reset(n)
	return m
}

// Reset makes m a mask of n rows that are all kept. It reuses the memory of its bits.
func (m *Mask) Reset(n int) {
	m.N = n
	m.Bits = slices.Grow(m.Bits[:0], int(bitutil.BytesForBits(int64(n))))[:bitutil.BytesForBits(int64(n))]
	bitutil.SetBitsTo(m.Bits, 0, int64(n), true)
}

// CopyFrom copies the bits of all, starting at row first.
func (m *Mask) CopyFrom(all []byte, first int) {
	bitutil.CopyBitmap(all, first, m.N, m.Bits, 0)
}

// Has reports whether row i is kept.
func (m *Mask) Has(i int) bool { return bitutil.BitIsSet(m.Bits, i) }

// Clear drops row i.
func (m *Mask) Clear(i int) { bitutil.ClearBit(m.Bits, i) }

// Kept is the number of rows that are kept.
func (m *Mask) Kept() int { return bitutil.CountSetBits(m.Bits, 0, m.N) }
