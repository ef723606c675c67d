// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"fmt"
	"math"

	ice "github.com/apache/iceberg-go"
	"github.com/google/uuid"

	"github.com/kubeflow/datacache/cacheserver/predicate"
)

// sources holds the values of columns that a file lacks, by field id.
type sources struct {
	partition map[int]any // values of the file's identity partition fields; used before defaults
	defaults  defaults    // initial defaults of the schema
}

// value returns the value of a field that a file lacks; nil is null.
func (s sources) value(f ice.NestedField) (*predicate.Value, error) {
	from, ok := s.partition[f.ID]
	if !ok {
		return s.defaults.value(f)
	}
	if from == nil {
		return nil, nil
	}
	v, err := partitionValue(from, f.Type)
	return &v, err
}

// partition returns the values of d's identity partition fields by the id of their source field (Iceberg spec, column projection):
// files added to a table may lack these columns. A null partition value counts as a value.
func (t *Table) partition(d *dataFile) map[int]any {
	if d.file == nil {
		return nil
	}
	spec := t.table.Metadata().PartitionSpecByID(int(d.file.SpecID()))
	if spec == nil {
		return nil
	}
	values, sources := d.file.Partition(), map[int]any{}
	for _, pf := range spec.Fields() {
		if _, ok := pf.Transform.(ice.IdentityTransform); !ok || len(pf.SourceIDs) != 1 {
			continue
		}
		if v, ok := values[pf.FieldID]; ok {
			sources[pf.SourceIDs[0]] = v
		}
	}
	return sources
}

// partitioned reports whether a file may lack a column whose value its partition has.
func (t *Table) partitioned() bool {
	for _, spec := range t.table.Metadata().PartitionSpecs() {
		for _, pf := range spec.Fields() {
			if _, ok := pf.Transform.(ice.IdentityTransform); ok {
				return true
			}
		}
	}
	return false
}

// kindOf returns how values of a type are compared; false for types without order.
func kindOf(t ice.Type) (predicate.Kind, bool) {
	switch t.(type) {
	case ice.BooleanType, ice.Int32Type, ice.Int64Type, ice.DateType, ice.TimeType,
		ice.TimestampType, ice.TimestampTzType, ice.TimestampNsType, ice.TimestampTzNsType:
		return predicate.KindInt, true
	case ice.Float32Type, ice.Float64Type:
		return predicate.KindFloat, true
	case ice.StringType, ice.BinaryType, ice.FixedType, ice.UUIDType:
		return predicate.KindBytes, true
	case ice.DecimalType:
		return predicate.KindDecimal, true
	}
	return 0, false
}

// partitionValue converts the value of an identity partition field, as iceberg-go reads it from a manifest, to type t of the source
// column. That type may be wider than the one that the value was written in: int to long, float to double, a decimal of more digits,
// date to timestamp.
func partitionValue(from any, t ice.Type) (predicate.Value, error) {
	v, err := partitionCell(from, t)
	if want, ok := kindOf(t); err == nil && (!ok || v.Kind != want) {
		err = fmt.Errorf("a %T is no value of type %s", from, t)
	}
	if err == nil {
		err = fits(v, t)
	}
	if err != nil {
		return predicate.Value{}, fmt.Errorf("partition value %v: %w", from, err)
	}
	return v, nil
}

func partitionCell(from any, t ice.Type) (predicate.Value, error) {
	switch v := from.(type) {
	case bool:
		return predicate.IntValue(int64(b2b(v))), nil
	case int32:
		return predicate.IntValue(int64(v)), nil
	case int64:
		return predicate.IntValue(v), nil
	case ice.Date:
		return dateValue(int64(v), t)
	case ice.Time:
		return predicate.IntValue(int64(v)), nil
	case ice.Timestamp:
		return predicate.IntValue(int64(v)), nil
	case ice.TimestampNano:
		return predicate.IntValue(int64(v)), nil
	case float32:
		return predicate.FloatValue(float64(v)), nil
	case float64:
		return predicate.FloatValue(v), nil
	case string:
		return predicate.BytesValue(v), nil
	case []byte:
		return predicate.BytesValue(string(v)), nil
	case [16]byte:
		return predicate.BytesValue(string(v[:])), nil
	case uuid.UUID:
		return predicate.BytesValue(string(v[:])), nil
	case ice.Decimal:
		return predicate.FromLiteral(ice.DecimalLiteral(v), t)
	case ice.DecimalLiteral:
		return predicate.FromLiteral(v, t)
	}
	return predicate.Value{}, fmt.Errorf("values of Go type %T are not supported", from)
}

// dateValue converts a number of days since 1970 to type t, which is date or a type that dates can be promoted to.
func dateValue(day int64, t ice.Type) (predicate.Value, error) {
	const second, secondsOfDay = 1_000_000, 24 * 60 * 60
	switch t.(type) {
	case ice.DateType:
		return predicate.IntValue(day), nil
	case ice.TimestampType:
		return predicate.IntValue(day * secondsOfDay * second), nil
	case ice.TimestampNsType:
		const nanos = secondsOfDay * second * 1000
		if day > math.MaxInt64/nanos || day < math.MinInt64/nanos {
			return predicate.Value{}, fmt.Errorf("day %d since 1970 does not fit %s, which ends in the year 2262", day, t)
		}
		return predicate.IntValue(day * nanos), nil
	}
	return predicate.Value{}, fmt.Errorf("a date is no value of type %s", t)
}

// fits checks that v is in the range of type t.
func fits(v predicate.Value, t ice.Type) error {
	ok := true
	switch t := t.(type) {
	case ice.BooleanType:
		ok = v.Int == 0 || v.Int == 1
	case ice.Int32Type, ice.DateType:
		ok = v.Int == int64(int32(v.Int))
	case ice.DecimalType:
		ok = v.Decimal.FitsInPrecision(int32(t.Precision()))
	case ice.FixedType:
		ok = len(v.Bytes) == t.Len()
	case ice.UUIDType:
		ok = len(v.Bytes) == len(uuid.UUID{})
	}
	if !ok {
		return fmt.Errorf("it does not fit type %s", t)
	}
	return nil
}
