// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate

import "github.com/apache/arrow-go/v18/arrow/bitutil"

// Mask has a bit for every row of a batch; 1 means that the row is kept.
type Mask struct {
	Bits []byte
	N    int
}

// NewMask returns a mask of n rows that are all kept.
func NewMask(n int) *Mask {
	m := &Mask{Bits: make([]byte, bitutil.BytesForBits(int64(n))), N: n}
	bitutil.SetBitsTo(m.Bits, 0, int64(n), true)
	return m
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
