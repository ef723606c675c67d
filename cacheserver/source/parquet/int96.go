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

// int96Type is the type of INT96 values as package decode yields them.
var int96Type = &arrow.FixedSizeBinaryType{ByteWidth: parquet.Int96SizeBytes}

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
			return nil, inexact(fmt.Sprintf("INT96 timestamp %s (Julian day %d)", v, binary.LittleEndian.Uint32(v[8:])), to)
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

// timestampOf converts a value, which is nanoseconds of a day and the Julian day. It returns false if the unit can't represent it
// exactly.
func timestampOf(value parquet.Int96, unit arrow.TimeUnit) (int64, bool) {
	if unit == arrow.Nanosecond {
		t, err := value.ToTimestamp()
		return int64(t), err == nil
	}
	nanos, day := int64(binary.LittleEndian.Uint64(value[:])), int64(binary.LittleEndian.Uint32(value[8:]))-unixEpochDay
	scale := int64(unit.Multiplier())
	if nanos < 0 || nanos >= nanosPerDay || nanos%scale != 0 || day >= math.MaxInt64/(nanosPerDay/scale) {
		return 0, false
	}
	return day*(nanosPerDay/scale) + nanos/scale, true
}
