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
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/kubeflow/datacache/cacheserver/predicate"
)

// constant is a column that has the same value, or null, in every row. It is safe for concurrent use.
type constant struct {
	to   arrow.DataType
	cell *predicate.Value // nil: null

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
func repeat(to arrow.DataType, cell *predicate.Value, n int) (arrow.Array, error) {
	if cell == nil {
		return array.MakeArrayOfNull(memory.DefaultAllocator, to, n), nil
	}
	storage := to
	if extension, ok := to.(arrow.ExtensionType); ok {
		storage = extension.StorageType()
	}
	buffers := []*memory.Buffer{nil}
	switch storage.ID() {
	case arrow.BOOL:
		bits := bytes.Repeat([]byte{byte(-cell.Int)}, (n+7)/8)
		buffers = append(buffers, memory.NewBufferBytes(bits))
	case arrow.STRING, arrow.BINARY:
		if n > 0 && len(cell.Bytes) > math.MaxInt32/n {
			return nil, fmt.Errorf("%d rows of %d bytes do not fit a batch", n, len(cell.Bytes))
		}
		offsets := make([]byte, 0, (n+1)*arrow.Int32SizeBytes)
		for i := range n + 1 {
			offsets = binary.LittleEndian.AppendUint32(offsets, uint32(i*len(cell.Bytes)))
		}
		buffers = append(buffers, memory.NewBufferBytes(offsets), memory.NewBufferBytes(bytes.Repeat([]byte(cell.Bytes), n)))
	default:
		raw, err := fixedWidth(storage, *cell)
		if err != nil {
			return nil, err
		}
		buffers = append(buffers, memory.NewBufferBytes(bytes.Repeat(raw, n)))
	}
	return wrap(array.NewData(to, n, buffers, nil, 0, 0)), nil
}

// fixedWidth returns a cell's bytes in an Arrow array of a fixed-width type.
func fixedWidth(to arrow.DataType, cell predicate.Value) ([]byte, error) {
	switch to.ID() {
	case arrow.INT32, arrow.DATE32:
		return binary.LittleEndian.AppendUint32(nil, uint32(cell.Int)), nil
	case arrow.INT64, arrow.TIME64, arrow.TIMESTAMP:
		return binary.LittleEndian.AppendUint64(nil, uint64(cell.Int)), nil
	case arrow.FLOAT32:
		return binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(cell.Float))), nil
	case arrow.FLOAT64:
		return binary.LittleEndian.AppendUint64(nil, math.Float64bits(cell.Float)), nil
	case arrow.DECIMAL128:
		return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, cell.Decimal.LowBits()), uint64(cell.Decimal.HighBits())), nil
	case arrow.FIXED_SIZE_BINARY:
		if width := to.(*arrow.FixedSizeBinaryType).ByteWidth; len(cell.Bytes) != width {
			return nil, fmt.Errorf("it has %d bytes, the column %d", len(cell.Bytes), width)
		}
		return []byte(cell.Bytes), nil
	}
	return nil, fmt.Errorf("a column of type %s cannot have a constant value", to)
}
