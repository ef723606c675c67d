// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
)

// convert converts arr to type to; the caller releases the result and still owns arr.
type convert func(ctx context.Context, mem allocator, arr arrow.Array, to arrow.DataType) (arrow.Array, error)

// conversion returns the function that converts a leaf of type from, as pqarrow reads it, to type to; nil if the types are equal.
// Besides the promotions of the Iceberg specification it supports what other writers use in files that are added to a table: INT96
// timestamps, other units, narrower integers, strings without a logical type.
func conversion(from, to arrow.DataType, physical parquet.Type) (convert, error) {
	if arrow.TypeEqual(from, to) {
		return nil, nil
	}
	switch to := to.(type) {
	case *arrow.TimestampType:
		return toTimestamp(from, to, physical)
	case *arrow.Time64Type:
		if t, ok := from.(*arrow.Time64Type); ok {
			return rescaling(t.Unit, to.Unit), nil
		}
		if from.ID() == arrow.TIME32 {
			return cast, nil
		}
	case *arrow.Decimal128Type:
		if d, ok := from.(*arrow.Decimal128Type); ok && d.Scale == to.Scale && d.Precision <= to.Precision {
			return relabel, nil
		}
	case *arrow.StringType:
		if from.ID() == arrow.BINARY {
			return toText, nil
		}
	case *arrow.BinaryType:
		if from.ID() == arrow.STRING {
			return relabel, nil
		}
	case arrow.ExtensionType:
		if arrow.TypeEqual(from, to.StorageType()) {
			return relabel, nil
		}
	case *arrow.DurationType:
		if from.ID() == arrow.INT64 {
			return relabel, nil
		}
	case *arrow.NullType:
		return allNull, nil
	default:
		if widens(from, to) {
			return cast, nil
		}
	}
	return nil, fmt.Errorf("the table's type %s cannot be read from the file's %s", to, from)
}

// widens reports whether type to can represent every value of from.
func widens(from, to arrow.DataType) bool {
	switch to.ID() {
	case arrow.INT16:
		return isOneOf(from, arrow.INT8, arrow.UINT8)
	case arrow.INT32:
		return isOneOf(from, arrow.INT8, arrow.INT16, arrow.UINT8, arrow.UINT16)
	case arrow.INT64:
		return isOneOf(from, arrow.INT8, arrow.INT16, arrow.INT32, arrow.UINT8, arrow.UINT16, arrow.UINT32)
	case arrow.UINT16:
		return isOneOf(from, arrow.UINT8)
	case arrow.UINT32:
		return isOneOf(from, arrow.UINT8, arrow.UINT16)
	case arrow.UINT64:
		return isOneOf(from, arrow.UINT8, arrow.UINT16, arrow.UINT32)
	case arrow.FLOAT32:
		return isOneOf(from, arrow.FLOAT16)
	case arrow.FLOAT64:
		return isOneOf(from, arrow.FLOAT16, arrow.FLOAT32)
	}
	return false
}

func isOneOf(t arrow.DataType, ids ...arrow.Type) bool { return slices.Contains(ids, t.ID()) }

// toTimestamp accepts another unit; it accepts another zone only for INT96, which does not record whether it is in UTC.
func toTimestamp(from arrow.DataType, to *arrow.TimestampType, physical parquet.Type) (convert, error) {
	if from.ID() == arrow.DATE32 && to.TimeZone == "" {
		return cast, nil
	}
	t, ok := from.(*arrow.TimestampType)
	if !ok {
		return nil, fmt.Errorf("the table's type %s cannot be read from the file's %s", to, from)
	}
	if physical == parquet.Types.Int96 {
		return fromINT96, nil
	}
	if (t.TimeZone == "") != (to.TimeZone == "") {
		return nil, fmt.Errorf("the table's type %s cannot be read from the file's %s: one of them has a time zone", to, from)
	}
	return rescaling(t.Unit, to.Unit), nil
}

// rescaling returns the conversion of timestamps or times of day between two units.
func rescaling(from, to arrow.TimeUnit) convert {
	if from == to {
		return relabel
	}
	scale, down := int64(from.Multiplier()), int64(to.Multiplier())
	if scale > down {
		factor := scale / down
		most := math.MaxInt64 / factor
		return rescale(func(v int64) (int64, bool) { return v * factor, -most <= v && v <= most })
	}
	divisor := down / scale
	return rescale(func(v int64) (int64, bool) { return v / divisor, v%divisor == 0 })
}

// rescale applies f to every value; f reports whether its result is the same time.
func rescale(f func(int64) (int64, bool)) convert {
	return func(_ context.Context, mem allocator, arr arrow.Array, to arrow.DataType) (arrow.Array, error) {
		d := arr.Data()
		from := arrow.Int64Traits.CastFromBytes(d.Buffers()[1].Bytes())[d.Offset():][:d.Len()]
		buf := memory.NewResizableBuffer(mem)
		defer buf.Release()
		buf.Resize(len(from) * arrow.Int64SizeBytes)
		out := arrow.Int64Traits.CastFromBytes(buf.Bytes())
		for i, v := range from {
			r, ok := f(v)
			if !ok && arr.IsValid(i) {
				return nil, inexact(arr.ValueStr(i), to)
			}
			out[i] = r
		}
		valid, owned := validity(mem, arr)
		if owned {
			defer valid.Release()
		}
		return wrap(array.NewData(to, len(from), []*memory.Buffer{valid, buf}, nil, arr.NullN(), 0)), nil
	}
}

// inexact is the error for a time that a type cannot represent exactly. It is not rounded: the user would not notice.
func inexact(value string, to arrow.DataType) error {
	return fmt.Errorf("%s does not fit %s exactly: leave the column out, or rewrite the file with values that do", value, to)
}

// relabel returns the same buffers with another type in which they have the same meaning.
func relabel(_ context.Context, _ allocator, arr arrow.Array, to arrow.DataType) (arrow.Array, error) {
	d := arr.Data()
	return wrap(array.NewData(to, d.Len(), d.Buffers(), nil, arr.NullN(), d.Offset())), nil
}

func cast(ctx context.Context, mem allocator, arr arrow.Array, to arrow.DataType) (arrow.Array, error) {
	return compute.CastArray(compute.WithAllocator(ctx, mem), arr, compute.SafeCastOptions(to))
}

func allNull(_ context.Context, _ allocator, arr arrow.Array, _ arrow.DataType) (arrow.Array, error) {
	return array.NewNull(arr.Len()), nil
}
