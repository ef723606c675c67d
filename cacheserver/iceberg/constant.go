// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"bytes"
	"fmt"
	"math"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	ice "github.com/apache/iceberg-go"
	"github.com/google/uuid"
)

// constant is a column of which every row has one value, or null. It is safe for
// concurrent use.
type constant struct {
	to   arrow.DataType
	cell *value // nil: null

	mu    sync.Mutex
	cells arrow.Array // the longest made so far; garbage collected, never released
}

// array returns n rows, which the caller releases.
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

// repeat returns n times a cell of type to; nil is null.
func repeat(to arrow.DataType, cell *value, n int) (arrow.Array, error) {
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
		bits := bytes.Repeat([]byte{byte(-cell.int)}, (n+7)/8)
		buffers = append(buffers, memory.NewBufferBytes(bits))
	case arrow.STRING, arrow.BINARY:
		if n > 0 && len(cell.bytes) > math.MaxInt32/n {
			return nil, fmt.Errorf("%d rows of %d bytes do not fit a batch", n, len(cell.bytes))
		}
		offsets := make([]byte, 0, (n+1)*arrow.Int32SizeBytes)
		for i := range n + 1 {
			offsets = le32(offsets, uint32(i*len(cell.bytes)))
		}
		buffers = append(buffers, memory.NewBufferBytes(offsets), memory.NewBufferBytes(bytes.Repeat([]byte(cell.bytes), n)))
	default:
		raw, err := fixedWidth(storage, *cell)
		if err != nil {
			return nil, err
		}
		buffers = append(buffers, memory.NewBufferBytes(bytes.Repeat(raw, n)))
	}
	return wrap(array.NewData(to, n, buffers, nil, 0, 0)), nil
}

// fixedWidth returns a cell as Arrow lays it out in an array of a fixed width.
func fixedWidth(to arrow.DataType, cell value) ([]byte, error) {
	switch to.ID() {
	case arrow.INT32, arrow.DATE32:
		return le32(nil, uint32(cell.int)), nil
	case arrow.INT64, arrow.TIME64, arrow.TIMESTAMP:
		return le64(nil, uint64(cell.int)), nil
	case arrow.FLOAT32:
		return le32(nil, math.Float32bits(float32(cell.float))), nil
	case arrow.FLOAT64:
		return le64(nil, math.Float64bits(cell.float)), nil
	case arrow.DECIMAL128:
		return le64(le64(nil, cell.decimal.LowBits()), uint64(cell.decimal.HighBits())), nil
	case arrow.FIXED_SIZE_BINARY:
		if width := to.(*arrow.FixedSizeBinaryType).ByteWidth; len(cell.bytes) != width {
			return nil, fmt.Errorf("it has %d bytes, the column %d", len(cell.bytes), width)
		}
		return []byte(cell.bytes), nil
	}
	return nil, fmt.Errorf("a column of type %s cannot have a constant value", to)
}

// kindOf returns how values of a type compare; false for types without order.
func kindOf(t ice.Type) (kind, bool) {
	switch t.(type) {
	case ice.BooleanType, ice.Int32Type, ice.Int64Type, ice.DateType, ice.TimeType,
		ice.TimestampType, ice.TimestampTzType, ice.TimestampNsType, ice.TimestampTzNsType:
		return kindInt, true
	case ice.Float32Type, ice.Float64Type:
		return kindFloat, true
	case ice.StringType, ice.BinaryType, ice.FixedType, ice.UUIDType:
		return kindBytes, true
	case ice.DecimalType:
		return kindDecimal, true
	}
	return 0, false
}

// partitionValue returns the value of an identity partition field, as iceberg-go
// reads it from a manifest, in type t of the source column. That may be wider
// than the type the value was written in: int to long, float to double, a decimal
// of more digits, date to timestamp.
func partitionValue(from any, t ice.Type) (value, error) {
	v, err := partitionCell(from, t)
	if want, ok := kindOf(t); err == nil && (!ok || v.kind != want) {
		err = fmt.Errorf("a %T is no value of type %s", from, t)
	}
	if err == nil {
		err = fits(v, t)
	}
	if err != nil {
		return value{}, fmt.Errorf("partition value %v: %w", from, err)
	}
	return v, nil
}

func partitionCell(from any, t ice.Type) (value, error) {
	switch v := from.(type) {
	case bool:
		return intValue(int64(b2b(v))), nil
	case int32:
		return intValue(int64(v)), nil
	case int64:
		return intValue(v), nil
	case ice.Date:
		return dateValue(int64(v), t)
	case ice.Time:
		return intValue(int64(v)), nil
	case ice.Timestamp:
		return intValue(int64(v)), nil
	case ice.TimestampNano:
		return intValue(int64(v)), nil
	case float32:
		return floatValue(float64(v)), nil
	case float64:
		return floatValue(v), nil
	case string:
		return bytesValue(v), nil
	case []byte:
		return bytesValue(string(v)), nil
	case [16]byte:
		return bytesValue(string(v[:])), nil
	case uuid.UUID:
		return bytesValue(string(v[:])), nil
	case ice.Decimal:
		return literalValue(ice.DecimalLiteral(v), t)
	case ice.DecimalLiteral:
		return literalValue(v, t)
	}
	return value{}, fmt.Errorf("values of Go type %T are not supported", from)
}

// dateValue returns a day since 1970 in type t, which is date or a type that
// dates are promoted to.
func dateValue(day int64, t ice.Type) (value, error) {
	const second, secondsOfDay = 1_000_000, 24 * 60 * 60
	switch t.(type) {
	case ice.DateType:
		return intValue(day), nil
	case ice.TimestampType:
		return intValue(day * secondsOfDay * second), nil
	case ice.TimestampNsType:
		const nanos = secondsOfDay * second * 1000
		if day > math.MaxInt64/nanos || day < math.MinInt64/nanos {
			return value{}, fmt.Errorf("day %d since 1970 does not fit %s, which ends in the year 2262", day, t)
		}
		return intValue(day * nanos), nil
	}
	return value{}, fmt.Errorf("a date is no value of type %s", t)
}

// fits checks that v is in the range of type t.
func fits(v value, t ice.Type) error {
	ok := true
	switch t := t.(type) {
	case ice.BooleanType:
		ok = v.int == 0 || v.int == 1
	case ice.Int32Type, ice.DateType:
		ok = v.int == int64(int32(v.int))
	case ice.DecimalType:
		ok = v.decimal.FitsInPrecision(int32(t.Precision()))
	case ice.FixedType:
		ok = len(v.bytes) == t.Len()
	case ice.UUIDType:
		ok = len(v.bytes) == len(uuid.UUID{})
	}
	if !ok {
		return fmt.Errorf("it does not fit type %s", t)
	}
	return nil
}
