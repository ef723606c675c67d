// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

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
func (m *mask) copyFrom(all bitmap, first int) {
	bitutil.CopyBitmap(all, first, m.n, m.bits, 0)
}

func (m *mask) has(i int) bool { return bitutil.BitIsSet(m.bits, i) }

func (m *mask) clear(i int) { bitutil.ClearBit(m.bits, i) }

// apply returns the rows of rec that stay, nil if none does. The caller releases
// the result and keeps rec.
func (m *mask) apply(ctx context.Context, rec arrow.RecordBatch) (arrow.RecordBatch, error) {
	switch bitutil.CountSetBits(m.bits, 0, m.n) {
	case 0:
		return nil, nil
	case m.n:
		rec.Retain()
		return rec, nil
	}
	keep := array.NewBoolean(m.n, memory.NewBufferBytes(m.bits), nil, 0)
	defer keep.Release()
	out, err := compute.FilterRecordBatch(ctx, rec, keep, compute.DefaultFilterOptions())
	if err != nil {
		return nil, fmt.Errorf("drop rows: %w", err)
	}
	return out, nil
}
