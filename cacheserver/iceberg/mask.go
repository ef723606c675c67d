// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import "github.com/apache/arrow-go/v18/arrow/bitutil"

// mask has a bit for every row of a batch; 1: the row stays.
type mask struct {
	bits []byte
	n    int
}

// newMask returns a mask in which all n rows stay.
func newMask(n int) *mask {
	m := &mask{bits: make([]byte, bitutil.BytesForBits(int64(n))), n: n}
	bitutil.SetBitsTo(m.bits, 0, int64(n), true)
	return m
}

// copyFrom takes the bits of all, from row first on.
func (m *mask) copyFrom(all []byte, first int) {
	bitutil.CopyBitmap(all, first, m.n, m.bits, 0)
}

func (m *mask) has(i int) bool { return bitutil.BitIsSet(m.bits, i) }

func (m *mask) clear(i int) { bitutil.ClearBit(m.bits, i) }

// kept is how many rows stay.
func (m *mask) kept() int { return bitutil.CountSetBits(m.bits, 0, m.n) }
