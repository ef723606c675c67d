// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/parquet"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/predicate"
)

// Bounds returns a function that returns the bounds of a field according to the statistics of a row group.
func (f *Footer) Bounds(group int) func(column.Field) predicate.Bounds {
	return func(field column.Field) predicate.Bounds {
		if !f.Has(field.ID) {
			return predicate.Bounds{}
		}
		leaf, from := f.byField[field.ID].leaf, f.byField[field.ID].field.Type
		meta := f.meta.RowGroups[group].Columns[leaf].GetMetaData()
		if !meta.IsSetStatistics() {
			return predicate.Bounds{}
		}
		s := meta.GetStatistics()
		b := predicate.Bounds{Nulls: s.GetNullCount(), Counted: s.IsSetNullCount(), Values: meta.GetNumValues()}
		if s.IsSetMinValue() && s.IsSetMaxValue() {
			physical := f.meta.Schema.Column(leaf).PhysicalType()
			lo, ok1 := statistic(s.GetMinValue(), physical, from, field.Type)
			hi, ok2 := statistic(s.GetMaxValue(), physical, from, field.Type)
			b.Min, b.Max, b.Known = lo, hi, ok1 && ok2 && lo.Compare(hi) <= 0
		}
		return b
	}
}

// Has reports whether the file has a column of primitive values for field id, which may be in a struct.
func (f *Footer) Has(id int) bool {
	c := f.byField[id]
	return c != nil && c.leaf >= 0
}

// indexFields adds columns to byField by their field ids, with those in structs, but not those in lists and maps; the first of each counts.
func indexFields(columns []*fileColumn, byField map[int]*fileColumn) {
	for _, c := range columns {
		if byField[c.id] == nil {
			byField[c.id] = c
		}
		if c.field.Type.ID() == arrow.STRUCT {
			indexFields(c.kids, byField)
		}
	}
}

// statistic decodes a bound of a column whose file type is from and whose table type is to.
func statistic(raw []byte, physical parquet.Type, from, to arrow.DataType) (column.Value, bool) {
	promoted := widens(from, to) && to.ID() != arrow.UINT64 // uint64 is compared as a decimal, narrower integers are not
	decimal := to.ID() == arrow.DECIMAL128
	switch {
	case !arrow.TypeEqual(from, to) && !promoted, physical == parquet.Types.Boolean, decimal && physical == parquet.Types.ByteArray:
		return column.Value{}, false
	case decimal && physical != parquet.Types.FixedLenByteArray: // an integer
		from = arrow.PrimitiveTypes.Int64
		if physical == parquet.Types.Int32 {
			from = arrow.PrimitiveTypes.Int32
		}
		v, ok := column.Decode(raw, from)
		return column.DecimalValue(decimal128.FromI64(v.Int)), ok
	}
	if physical == parquet.Types.Int32 && isOneOf(from, arrow.INT8, arrow.INT16, arrow.UINT8, arrow.UINT16) {
		from = arrow.PrimitiveTypes.Int32 // files store narrow integers as int32
	}
	return column.Decode(raw, from)
}
