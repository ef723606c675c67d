// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"fmt"
	"math"
	"reflect"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	ice "github.com/apache/iceberg-go"
	"github.com/google/uuid"

	"github.com/kubeflow/datacache/cacheserver/column"
)

// sources holds the values of columns that a file lacks, by field id.
type sources struct {
	partition partition // used before defaults
	defaults  defaults  // initial defaults of the schema
}

// value returns the value of a field that a file lacks; nil is null.
func (s sources) value(f column.Field) (*column.Value, error) {
	from, ok := s.partition.value(f.ID)
	if !ok {
		return s.defaults.value(f)
	}
	if from == nil {
		return nil, nil
	}
	v, err := partitionValue(from, f.Type)
	return &v, err
}

// identityField is an identity partition field: files added to a table may lack its source column (Iceberg spec, column projection).
type identityField struct{ id, source int }

// identityFields are the identity partition fields of a table, by the id of the partition spec. Specs without any are left out.
type identityFields map[int32][]identityField

func identityFieldsOf(specs []ice.PartitionSpec) identityFields {
	fields := identityFields{}
	for _, spec := range specs {
		for _, pf := range spec.Fields() {
			if _, ok := pf.Transform.(ice.IdentityTransform); ok && len(pf.SourceIDs) == 1 {
				id := int32(spec.ID())
				fields[id] = append(fields[id], identityField{pf.FieldID, pf.SourceIDs[0]})
			}
		}
	}
	return fields
}

// partition has the values of a file's identity partition fields.
type partition []sourceValue

// sourceValue is the value of a field in all rows of a file; nil is null.
type sourceValue struct {
	field int // its id
	value any
}

// value returns the value of a field; false if it is not an identity partition field. A null partition value counts as a value.
func (p partition) value(field int) (any, bool) {
	for _, v := range p {
		if v.field == field {
			return v.value, true
		}
	}
	return nil, false
}

// partition returns the values of a file's identity partition fields.
func (i identityFields) partition(file ice.DataFile) (p partition) {
	fields := i[file.SpecID()]
	if len(fields) == 0 {
		return nil
	}
	values := file.Partition()
	for _, f := range fields {
		if v, ok := values[f.id]; ok {
			p = append(p, sourceValue{f.source, v})
		}
	}
	return p
}

// partitionValue converts the value of an identity partition field, as iceberg-go reads it from a manifest, to type t of the source
// column. That type may be wider than the one that the value was written in: int to long, float to double, a decimal of more digits,
// date to timestamp.
func partitionValue(from any, t arrow.DataType) (column.Value, error) {
	v, err := valueOf(from)
	if day, ok := from.(ice.Date); ok && t.ID() == arrow.TIMESTAMP {
		v, err = dateValue(int64(day), t)
	}
	if d, ok := decimalOf(from); ok && t.ID() == arrow.DECIMAL128 && int(t.(*arrow.Decimal128Type).Scale) != d.Scale {
		err = fmt.Errorf("it has a scale of %d, and the column is %s", d.Scale, column.Name(t))
	}
	if err == nil {
		_, err = column.Encode(v, t) // checks that it fits
	}
	if err != nil {
		return v, fmt.Errorf("partition value %v: %w", from, err)
	}
	return v, nil
}

// valueOf converts a value of one of iceberg-go's types.
func valueOf(from any) (column.Value, error) {
	if d, ok := decimalOf(from); ok {
		return column.DecimalValue(d.Val), nil
	}
	switch v := reflect.ValueOf(from); v.Kind() {
	case reflect.Bool:
		return column.IntValue(column.BoolInt(v.Bool())), nil
	case reflect.Int32, reflect.Int64:
		return column.IntValue(v.Int()), nil
	case reflect.Float32, reflect.Float64:
		return column.FloatValue(v.Float()), nil
	case reflect.String:
		return column.BytesValue(v.String()), nil
	case reflect.Slice:
		return column.BytesValue(string(v.Bytes())), nil
	case reflect.Array: // a UUID
		var id uuid.UUID
		reflect.Copy(reflect.ValueOf(id[:]), v)
		return column.BytesValue(string(id[:])), nil
	}
	return column.Value{}, fmt.Errorf("values of Go type %T are not supported", from)
}

func decimalOf(from any) (d ice.Decimal, ok bool) {
	switch v := from.(type) {
	case ice.Decimal:
		return v, true
	case ice.DecimalLiteral:
		return ice.Decimal(v), true
	}
	return d, false
}

// dateValue converts a number of days since 1970 to type t, a timestamp without a zone, to which dates can be promoted.
func dateValue(day int64, t arrow.DataType) (column.Value, error) {
	to := t.(*arrow.TimestampType)
	perDay := int64(24 * time.Hour / to.Unit.Multiplier())
	switch {
	case to.TimeZone != "":
		return column.Value{}, fmt.Errorf("a date is no value of type %s", column.Name(t))
	case day > math.MaxInt64/perDay || day < math.MinInt64/perDay:
		return column.Value{}, fmt.Errorf("day %d since 1970 does not fit %s, which ends in the year 2262", day, column.Name(t))
	}
	return column.IntValue(day * perDay), nil
}
