// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/kubeflow/datacache/cacheserver/column"
)

// constant is a column that has the same value, or null, in every row. It is safe for concurrent use.
type constant struct {
	to   arrow.DataType
	cell *column.Value // nil: null

	mu    sync.Mutex
	cells arrow.Array // the longest array made so far; left to the garbage collector, never released
}

// array returns an array of n rows, which the caller releases.
func (c *constant) array(n int) (arrow.Array, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cells == nil || c.cells.Len() < n {
		cells, err := repeat(c.to, c.cell, n)
		if err != nil {
			return nil, err
		}
		c.cells = cells
	}
	return array.NewSlice(c.cells, 0, int64(n)), nil
}

// repeat returns an array of type to that repeats a cell n times; nil is null.
func repeat(to arrow.DataType, cell *column.Value, n int) (arrow.Array, error) {
	if cell == nil {
		return array.MakeArrayOfNull(memory.DefaultAllocator, to, n), nil
	}
	raw, err := column.Encode(*cell, to)
	if err != nil {
		return nil, err
	}
	buffers := []*memory.Buffer{nil}
	switch to.ID() {
	case arrow.BOOL:
		bits := memory.NewBufferBytes(bytes.Repeat([]byte{-raw[0]}, (n+7)/8))
		return wrap(array.NewData(to, n, append(buffers, bits), nil, 0, 0)), nil
	case arrow.DECIMAL128:
		raw = arrow.GetBytes([]decimal128.Num{cell.Decimal})
	case arrow.STRING, arrow.BINARY:
		if n > 0 && len(raw) > math.MaxInt32/n {
			return nil, fmt.Errorf("%d rows of %d bytes do not fit a batch", n, len(raw))
		}
		offsets := make([]byte, 0, (n+1)*arrow.Int32SizeBytes)
		for i := range n + 1 {
			offsets = binary.LittleEndian.AppendUint32(offsets, uint32(i*len(raw)))
		}
		buffers = append(buffers, memory.NewBufferBytes(offsets))
	}
	buffers = append(buffers, memory.NewBufferBytes(bytes.Repeat(raw, n)))
	return wrap(array.NewData(to, n, buffers, nil, 0, 0)), nil
}
