// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
)

// asINT96 returns the field of a column of INT96 timestamps, or of lists of them, as package decode yields it: the 12 bytes of each
// value. pqarrow converts them to nanoseconds, which can only represent the years 1677 to 2262.
func asINT96(field arrow.Field) arrow.Field {
	value := arrow.DataType(&arrow.FixedSizeBinaryType{ByteWidth: parquet.Int96SizeBytes})
	if list, ok := field.Type.(*arrow.ListType); ok {
		elem := list.ElemField()
		elem.Type = value
		value = arrow.ListOfField(elem)
	}
	field.Type = value
	return field
}

// fromINT96 converts INT96 timestamps, as yielded by package decode or by pqarrow.
func fromINT96(ctx context.Context, mem allocator, arr arrow.Array, to arrow.DataType) (arrow.Array, error) {
	unit := to.(*arrow.TimestampType).Unit
	from, ok := arr.(*array.FixedSizeBinary)
	if !ok {
		return rescaling(arrow.Nanosecond, unit)(ctx, mem, arr, to)
	}
	buf := memory.NewResizableBuffer(mem)
	defer buf.Release()
	buf.Resize(from.Len() * arrow.Int64SizeBytes)
	out := arrow.Int64Traits.CastFromBytes(buf.Bytes())
	for i := range out {
		if from.IsNull(i) {
			continue
		}
		v := parquet.Int96(from.Value(i))
		if out[i], ok = timestampOf(v, unit); !ok {
			return nil, fmt.Errorf("INT96 timestamp %s (Julian day %d) does not fit %s", v, binary.LittleEndian.Uint32(v[8:]), to)
		}
	}
	valid, owned := validity(mem, arr)
	if owned {
		defer valid.Release()
	}
	return wrap(array.NewData(to, from.Len(), []*memory.Buffer{valid, buf}, nil, arr.NullN(), 0)), nil
}

const (
	unixEpochDay = 2440588 // Julian day of 1970-01-01
	nanosPerDay  = 86_400_000_000_000
)

// timestampOf converts a value, which is nanoseconds of a day and the Julian day. It returns false if the unit can't represent it.
func timestampOf(value parquet.Int96, unit arrow.TimeUnit) (int64, bool) {
	if unit == arrow.Nanosecond {
		t, err := value.ToTimestamp()
		return int64(t), err == nil
	}
	nanos, day := int64(binary.LittleEndian.Uint64(value[:])), int64(binary.LittleEndian.Uint32(value[8:]))-unixEpochDay
	scale := int64(unit.Multiplier())
	if nanos < 0 || nanos >= nanosPerDay || day >= math.MaxInt64/(nanosPerDay/scale) {
		return 0, false
	}
	return day*(nanosPerDay/scale) + nanos/scale, true
}
