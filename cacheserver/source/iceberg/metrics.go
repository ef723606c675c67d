// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"bytes"
	"errors"
	"math"

	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/predicate"
)

// metricsOf returns the bounds of a data file's columns according to its manifest.
func metricsOf(d ice.DataFile) func(ice.NestedField) predicate.Bounds {
	values, nulls, nans := d.ValueCounts(), d.NullValueCounts(), d.NaNValueCounts()
	lower, upper := d.LowerBoundValues(), d.UpperBoundValues()
	return func(f ice.NestedField) predicate.Bounds {
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
func boundsOf(lower, upper []byte, t ice.Type) (lo, hi predicate.Value, ok bool) {
	lo, err1 := boundOf(lower, t)
	hi, err2 := boundOf(upper, t)
	if errors.Join(err1, err2) != nil || lo.Kind != hi.Kind || lo.Kind == predicate.KindFloat && (math.IsNaN(lo.Float) || math.IsNaN(hi.Float)) {
		return lo, hi, false
	}
	_, isUUID := t.(ice.UUIDType)
	return lo, hi, lo.Compare(hi) <= 0 && (!isUUID || bytes.Equal(lower, upper))
}

// boundOf decodes a bound (Iceberg spec, binary single-value serialization), which may have been written before the column was
// promoted to type t.
func boundOf(raw []byte, t ice.Type) (predicate.Value, error) {
	written := t
	if len(raw) == 4 {
		switch t.(type) {
		case ice.Int64Type:
			written = ice.PrimitiveTypes.Int32
		case ice.Float64Type:
			written = ice.PrimitiveTypes.Float32
		case ice.TimestampType, ice.TimestampNsType:
			written = ice.PrimitiveTypes.Date
		}
	}
	lit, err := ice.LiteralFromBytes(written, raw)
	if err != nil {
		return predicate.Value{}, err
	}
	if day, ok := lit.(ice.DateLiteral); ok {
		return dateValue(int64(day), t)
	}
	return predicate.FromLiteral(lit, t)
}

// statedBounds returns the bounds of fields in a data file's manifest, by id.
func statedBounds(d ice.DataFile, fields []ice.NestedField) map[int]predicate.Bounds {
	if len(fields) == 0 {
		return nil
	}
	of, all := metricsOf(d), map[int]predicate.Bounds{}
	for _, field := range fields {
		all[field.ID] = of(field)
	}
	return all
}
