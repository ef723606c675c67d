// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"bytes"
	"cmp"
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	ice "github.com/apache/iceberg-go"
)

// kind is how values of a type compare.
type kind int

const (
	kindInt     kind = iota // integers, dates, times, timestamps, booleans
	kindFloat               // by IEEE 754: NaN is neither less than, equal to nor greater than anything
	kindBytes               // strings, binary, fixed, uuid: unsigned, byte by byte
	kindDecimal             // of one scale
)

// value is a cell or a literal. It is comparable, so that it can be a map's key.
type value struct {
	kind    kind
	int     int64
	float   float64
	bytes   string
	decimal decimal128.Num
}

// unordered is what compare says of NaN.
const unordered = 2

// compare returns -1, 0, 1 or unordered; both values are of one kind.
func (v value) compare(w value) int {
	switch v.kind {
	case kindFloat:
		if math.IsNaN(v.float) || math.IsNaN(w.float) {
			return unordered
		}
		return cmp.Compare(v.float, w.float)
	case kindBytes:
		return cmp.Compare(v.bytes, w.bytes)
	case kindDecimal:
		return v.decimal.Cmp(w.decimal)
	}
	return cmp.Compare(v.int, w.int)
}

func intValue(v int64) value     { return value{kind: kindInt, int: v} }
func floatValue(v float64) value { return value{kind: kindFloat, float: v} }
func bytesValue(v string) value  { return value{kind: kindBytes, bytes: v} }

func boolInt(v bool) int64 {
	if v {
		return 1
	}
	return 0
}

// literalValue returns a literal that iceberg-go bound to a column of type t.
func literalValue(lit ice.Literal, t ice.Type) (value, error) {
	switch l := lit.(type) {
	case ice.BoolLiteral:
		return intValue(boolInt(bool(l))), nil
	case ice.Int32Literal:
		return intValue(int64(l)), nil
	case ice.Int64Literal:
		return intValue(int64(l)), nil
	case ice.DateLiteral:
		return intValue(int64(l)), nil
	case ice.TimeLiteral:
		return intValue(int64(l)), nil
	case ice.TimestampLiteral:
		return intValue(int64(l)), nil
	case ice.TimestampNsLiteral:
		return intValue(int64(l)), nil
	case ice.Float32Literal:
		return floatValue(float64(l)), nil
	case ice.Float64Literal:
		return floatValue(float64(l)), nil
	case ice.StringLiteral:
		return bytesValue(string(l)), nil
	case ice.BinaryLiteral:
		return bytesValue(string(l)), nil
	case ice.FixedLiteral:
		return bytesValue(string(l)), nil
	case ice.UUIDLiteral:
		return bytesValue(string(l[:])), nil
	case ice.DecimalLiteral:
		if d, ok := t.(ice.DecimalType); ok && d.Scale() == l.Scale {
			return value{kind: kindDecimal, decimal: l.Val}, nil
		}
	}
	return value{}, fmt.Errorf("%T %s cannot be compared with %s", lit, lit, t)
}

// cellComparer returns what compares the cells of an array with v.
func cellComparer(arr arrow.Array, v value) (func(i int) int, error) {
	want := v.kind
	switch a := arr.(type) {
	case *array.Int32:
		return func(i int) int { return cmp.Compare(int64(a.Value(i)), v.int) }, want.is(kindInt)
	case *array.Int64:
		return func(i int) int { return cmp.Compare(a.Value(i), v.int) }, want.is(kindInt)
	case *array.Float64:
		return func(i int) int { return floatValue(a.Value(i)).compare(v) }, want.is(kindFloat)
	case *array.String:
		return func(i int) int { return cmp.Compare(a.Value(i), v.bytes) }, want.is(kindBytes)
	case *array.Binary:
		lit := []byte(v.bytes)
		return func(i int) int { return bytes.Compare(a.Value(i), lit) }, want.is(kindBytes)
	}
	get, k, err := cells(arr)
	if err != nil {
		return nil, err
	}
	return func(i int) int { return get(i).compare(v) }, want.is(k)
}

func (k kind) is(other kind) error {
	if k != other {
		return fmt.Errorf("a literal of another kind than the column")
	}
	return nil
}

// cells returns what reads the cells of an array, and their kind.
func cells(arr arrow.Array) (func(i int) value, kind, error) {
	switch a := arr.(type) {
	case *array.Boolean:
		return func(i int) value { return intValue(boolInt(a.Value(i))) }, kindInt, nil
	case *array.Int32:
		return func(i int) value { return intValue(int64(a.Value(i))) }, kindInt, nil
	case *array.Date32:
		return func(i int) value { return intValue(int64(a.Value(i))) }, kindInt, nil
	case *array.Int64:
		return func(i int) value { return intValue(a.Value(i)) }, kindInt, nil
	case *array.Time64:
		return func(i int) value { return intValue(int64(a.Value(i))) }, kindInt, nil
	case *array.Timestamp:
		return func(i int) value { return intValue(int64(a.Value(i))) }, kindInt, nil
	case *array.Float32:
		return func(i int) value { return floatValue(float64(a.Value(i))) }, kindFloat, nil
	case *array.Float64:
		return func(i int) value { return floatValue(a.Value(i)) }, kindFloat, nil
	case *array.String:
		return func(i int) value { return bytesValue(a.Value(i)) }, kindBytes, nil
	case *array.Binary:
		return func(i int) value { return bytesValue(a.ValueString(i)) }, kindBytes, nil
	case *array.FixedSizeBinary:
		return func(i int) value { return bytesValue(string(a.Value(i))) }, kindBytes, nil
	case *array.Decimal128:
		return func(i int) value { return value{kind: kindDecimal, decimal: a.Value(i)} }, kindDecimal, nil
	case array.ExtensionArray:
		return cells(a.Storage())
	}
	return nil, 0, fmt.Errorf("type %s cannot be compared", arr.DataType())
}
