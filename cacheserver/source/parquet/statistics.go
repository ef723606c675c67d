// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"encoding/binary"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/parquet"
	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/predicate"
)

// Bounds returns a function that returns the bounds of a field according to the statistics of a row group.
func (f *Footer) Bounds(group int) func(ice.NestedField) predicate.Bounds {
	return func(field ice.NestedField) predicate.Bounds {
		leaf, from := findLeaf(f.columns, field.ID)
		if leaf < 0 {
			return predicate.Bounds{}
		}
		meta := f.meta.RowGroups[group].Columns[leaf].GetMetaData()
		if meta == nil || !meta.IsSetStatistics() {
			return predicate.Bounds{}
		}
		s := meta.GetStatistics()
		b := predicate.Bounds{Nulls: s.GetNullCount(), Counted: s.IsSetNullCount(), Values: meta.GetNumValues()}
		if !s.IsSetMinValue() || !s.IsSetMaxValue() {
			return b
		}
		to, err := ArrowType(field, nil)
		if err != nil {
			return b
		}
		physical := f.meta.Schema.Column(leaf).PhysicalType()
		lo, ok1 := statistic(s.GetMinValue(), physical, from, to)
		hi, ok2 := statistic(s.GetMaxValue(), physical, from, to)
		b.Min, b.Max = lo, hi
		b.Known = ok1 && ok2 && lo.Compare(hi) <= 0
		return b
	}
}

// Has reports whether the file has a column of primitive values for field id, which may be in a struct.
func (f *Footer) Has(id int) bool {
	leaf, _ := findLeaf(f.columns, id)
	return leaf >= 0
}

// findLeaf returns the Parquet column of field id and its type in the file, unless it is in a list or a map; -1 if there is none.
func findLeaf(columns []*fileColumn, id int) (int, arrow.DataType) {
	for _, c := range columns {
		if c.id == id {
			return c.leaf, c.field.Type
		}
		if c.field.Type.ID() == arrow.STRUCT {
			if leaf, t := findLeaf(c.kids, id); leaf >= 0 {
				return leaf, t
			}
		}
	}
	return -1, nil
}

// statistic decodes a bound of a column whose file type is from and whose table type is to.
func statistic(raw []byte, physical parquet.Type, from, to arrow.DataType) (predicate.Value, bool) {
	promoted := from.ID() == arrow.INT32 && to.ID() == arrow.INT64 || from.ID() == arrow.FLOAT32 && to.ID() == arrow.FLOAT64
	if !arrow.TypeEqual(from, to) && !promoted {
		return predicate.Value{}, false
	}
	if d, ok := to.(*arrow.Decimal128Type); ok && d.Scale >= 0 {
		return decimalStatistic(raw, physical)
	}
	switch physical {
	case parquet.Types.Int32:
		return predicate.IntValue(int64(int32(first4(raw)))), len(raw) == 4
	case parquet.Types.Int64:
		return predicate.IntValue(int64(first8(raw))), len(raw) == 8
	case parquet.Types.Float:
		v := float64(math.Float32frombits(first4(raw)))
		return predicate.FloatValue(v), len(raw) == 4 && !math.IsNaN(v)
	case parquet.Types.Double:
		v := math.Float64frombits(first8(raw))
		return predicate.FloatValue(v), len(raw) == 8 && !math.IsNaN(v)
	case parquet.Types.ByteArray, parquet.Types.FixedLenByteArray:
		return predicate.BytesValue(string(raw)), true
	}
	return predicate.Value{}, false
}

func decimalStatistic(raw []byte, physical parquet.Type) (predicate.Value, bool) {
	v := predicate.Value{Kind: predicate.KindDecimal}
	switch {
	case physical == parquet.Types.Int32 && len(raw) == 4:
		v.Decimal = decimal128.FromI64(int64(int32(first4(raw))))
	case physical == parquet.Types.Int64 && len(raw) == 8:
		v.Decimal = decimal128.FromI64(int64(first8(raw)))
	case physical == parquet.Types.FixedLenByteArray && len(raw) > 0 && len(raw) <= 16:
		var wide [16]byte // big-endian two's complement
		if raw[0]&0x80 != 0 {
			for i := range wide {
				wide[i] = 0xff
			}
		}
		copy(wide[16-len(raw):], raw)
		v.Decimal = decimal128.New(int64(binary.BigEndian.Uint64(wide[:8])), binary.BigEndian.Uint64(wide[8:]))
	default:
		return v, false
	}
	return v, true
}

func first4(raw []byte) uint32 {
	if len(raw) != 4 {
		return 0
	}
	return binary.LittleEndian.Uint32(raw)
}

func first8(raw []byte) uint64 {
	if len(raw) != 8 {
		return 0
	}
	return binary.LittleEndian.Uint64(raw)
}
