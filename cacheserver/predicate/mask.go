// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate

import "github.com/apache/arrow-go/v18/arrow/bitutil"

// Mask has a bit for every row of a batch; 1: the row stays.
type Mask struct {
	Bits []byte
	N    int
}

// NewMask returns a mask in which all n rows stay.
func NewMask(n int) *Mask {
	m := &Mask{Bits: make([]byte, bitutil.BytesForBits(int64(n))), N: n}
	bitutil.SetBitsTo(m.Bits, 0, int64(n), true)
	return m
}

// CopyFrom takes the bits of all, from row first on.
func (m *Mask) CopyFrom(all []byte, first int) {
	bitutil.CopyBitmap(all, first, m.N, m.Bits, 0)
}

// Has says whether row i stays.
func (m *Mask) Has(i int) bool { return bitutil.BitIsSet(m.Bits, i) }

// Clear drops row i.
func (m *Mask) Clear(i int) { bitutil.ClearBit(m.Bits, i) }

// Kept is how many rows stay.
func (m *Mask) Kept() int { return bitutil.CountSetBits(m.Bits, 0, m.N) }
