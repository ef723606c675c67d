// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"bytes"

	"github.com/apache/arrow-go/v18/arrow"
	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/predicate"
)

// metricsOf returns the bounds of a data file's columns according to its manifest.
func metricsOf(d ice.DataFile) func(column.Field) predicate.Bounds {
	values, nulls, nans := d.ValueCounts(), d.NullValueCounts(), d.NaNValueCounts()
	lower, upper := d.LowerBoundValues(), d.UpperBoundValues()
	return func(f column.Field) predicate.Bounds {
		var b predicate.Bounds
		var ok bool
		if ice.IsMetadataColumn(f.ID) { // statistics do not count inherited values
			return b
		}
		if b.Values, ok = values[f.ID]; ok {
			b.Nulls, b.Counted = nulls[f.ID]
			b.Counted = b.Counted && b.Nulls >= 0
		}
		count, ok := nans[f.ID]
		b.NoNaN = ok && count == 0
		lo, ok1 := lower[f.ID]
		hi, ok2 := upper[f.ID]
		if ok1 && ok2 {
			b.Min, b.Max, b.Known = boundsOf(lo, hi, f.Type)
		}
		return b
	}
}

// boundsOf decodes a lower and an upper bound of a column of type t; ok is false if they can't be used. Java orders UUIDs as signed
// numbers, unlike the specification and the comparison of rows, so theirs are used only if they are equal.
func boundsOf(lower, upper []byte, t arrow.DataType) (lo, hi column.Value, ok bool) {
	lo, ok1 := boundOf(lower, t)
	hi, ok2 := boundOf(upper, t)
	return lo, hi, ok1 && ok2 && lo.Compare(hi) <= 0 && (t.ID() != arrow.EXTENSION || bytes.Equal(lower, upper))
}

// boundOf decodes a bound (Iceberg spec, binary single-value serialization), which may have been written before the column was
// promoted to type t.
func boundOf(raw []byte, t arrow.DataType) (column.Value, bool) {
	if len(raw) == 4 {
		switch t.ID() {
		case arrow.INT64:
			t = arrow.PrimitiveTypes.Int32
		case arrow.FLOAT64:
			t = arrow.PrimitiveTypes.Float32
		case arrow.TIMESTAMP:
			day, ok := column.Decode(raw, arrow.FixedWidthTypes.Date32)
			v, err := dateValue(day.Int, t)
			return v, ok && err == nil
		}
	}
	return column.Decode(raw, t)
}

// statedBounds returns the bounds of fields in a data file's manifest, by id.
func statedBounds(d ice.DataFile, fields []column.Field) map[int]predicate.Bounds {
	if len(fields) == 0 {
		return nil
	}
	of, all := metricsOf(d), map[int]predicate.Bounds{}
	for _, field := range fields {
		all[field.ID] = of(field)
	}
	return all
}
