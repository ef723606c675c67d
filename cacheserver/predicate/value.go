// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate

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

// Kind is the way in which values of a type are compared.
type Kind int

// The kinds of values.
const (
	KindInt     Kind = iota // integers, dates, times, timestamps, booleans
	KindFloat               // by IEEE 754: NaN is neither less than, equal to nor greater than any value
	KindBytes               // strings, binary, fixed, uuid: as unsigned bytes
	KindDecimal             // with equal scales
)

// Value is a cell or a literal. It is comparable, so that it can be a map key.
type Value struct {
	Kind    Kind
	Int     int64
	Float   float64
	Bytes   string
	Decimal decimal128.Num
}

// unordered is the result of Compare if one value is NaN.
const unordered = 2

// Compare returns -1, 0, 1 or unordered; both values must be of the same kind.
func (v Value) Compare(w Value) int {
	switch v.Kind {
	case KindFloat:
		if math.IsNaN(v.Float) || math.IsNaN(w.Float) {
			return unordered
		}
		return cmp.Compare(v.Float, w.Float)
	case KindBytes:
		return cmp.Compare(v.Bytes, w.Bytes)
	case KindDecimal:
		return v.Decimal.Cmp(w.Decimal)
	}
	return cmp.Compare(v.Int, w.Int)
}

// IntValue is a value of KindInt.
func IntValue(v int64) Value { return Value{Kind: KindInt, Int: v} }

// FloatValue is a value of KindFloat.
func FloatValue(v float64) Value { return Value{Kind: KindFloat, Float: v} }

// BytesValue is a value of KindBytes.
func BytesValue(v string) Value { return Value{Kind: KindBytes, Bytes: v} }

func boolInt(v bool) int64 {
	if v {
		return 1
	}
	return 0
}

// FromLiteral converts a literal that iceberg-go bound to a column of type t.
func FromLiteral(lit ice.Literal, t ice.Type) (Value, error) {
	switch l := lit.(type) {
	case ice.BoolLiteral:
		return IntValue(boolInt(bool(l))), nil
	case ice.Int32Literal:
		return IntValue(int64(l)), nil
	case ice.Int64Literal:
		return IntValue(int64(l)), nil
	case ice.DateLiteral:
		return IntValue(int64(l)), nil
	case ice.TimeLiteral:
		return IntValue(int64(l)), nil
	case ice.TimestampLiteral:
		return IntValue(int64(l)), nil
	case ice.TimestampNsLiteral:
		return IntValue(int64(l)), nil
	case ice.Float32Literal:
		return FloatValue(float64(l)), nil
	case ice.Float64Literal:
		return FloatValue(float64(l)), nil
	case ice.StringLiteral:
		return BytesValue(string(l)), nil
	case ice.BinaryLiteral:
		return BytesValue(string(l)), nil
	case ice.FixedLiteral:
		return BytesValue(string(l)), nil
	case ice.UUIDLiteral:
		return BytesValue(string(l[:])), nil
	case ice.DecimalLiteral:
		if d, ok := t.(ice.DecimalType); ok && d.Scale() == l.Scale {
			return Value{Kind: KindDecimal, Decimal: l.Val}, nil
		}
	}
	return Value{}, fmt.Errorf("%T %s cannot be compared with %s", lit, lit, t)
}

// cellComparer returns a function that compares a cell of an array with v.
func cellComparer(arr arrow.Array, v Value) (func(i int) int, error) {
	want := v.Kind
	switch a := arr.(type) {
	case *array.Int32:
		return func(i int) int { return cmp.Compare(int64(a.Value(i)), v.Int) }, want.is(KindInt)
	case *array.Int64:
		return func(i int) int { return cmp.Compare(a.Value(i), v.Int) }, want.is(KindInt)
	case *array.Float64:
		return func(i int) int { return FloatValue(a.Value(i)).Compare(v) }, want.is(KindFloat)
	case *array.String:
		return func(i int) int { return cmp.Compare(a.Value(i), v.Bytes) }, want.is(KindBytes)
	case *array.Binary:
		lit := []byte(v.Bytes)
		return func(i int) int { return bytes.Compare(a.Value(i), lit) }, want.is(KindBytes)
	}
	get, k, err := cells(arr)
	if err != nil {
		return nil, err
	}
	return func(i int) int { return get(i).Compare(v) }, want.is(k)
}

func (k Kind) is(other Kind) error {
	if k != other {
		return fmt.Errorf("a literal of another kind than the column")
	}
	return nil
}

// cells returns a function that reads a cell of an array, and the kind of the cells.
func cells(arr arrow.Array) (func(i int) Value, Kind, error) {
	switch a := arr.(type) {
	case *array.Boolean:
		return func(i int) Value { return IntValue(boolInt(a.Value(i))) }, KindInt, nil
	case *array.Int32:
		return func(i int) Value { return IntValue(int64(a.Value(i))) }, KindInt, nil
	case *array.Date32:
		return func(i int) Value { return IntValue(int64(a.Value(i))) }, KindInt, nil
	case *array.Int64:
		return func(i int) Value { return IntValue(a.Value(i)) }, KindInt, nil
	case *array.Time64:
		return func(i int) Value { return IntValue(int64(a.Value(i))) }, KindInt, nil
	case *array.Timestamp:
		return func(i int) Value { return IntValue(int64(a.Value(i))) }, KindInt, nil
	case *array.Float32:
		return func(i int) Value { return FloatValue(float64(a.Value(i))) }, KindFloat, nil
	case *array.Float64:
		return func(i int) Value { return FloatValue(a.Value(i)) }, KindFloat, nil
	case *array.String:
		return func(i int) Value { return BytesValue(a.Value(i)) }, KindBytes, nil
	case *array.Binary:
		return func(i int) Value { return BytesValue(a.ValueString(i)) }, KindBytes, nil
	case *array.FixedSizeBinary:
		return func(i int) Value { return BytesValue(string(a.Value(i))) }, KindBytes, nil
	case *array.Decimal128:
		return func(i int) Value { return Value{Kind: KindDecimal, Decimal: a.Value(i)} }, KindDecimal, nil
	case array.ExtensionArray:
		return cells(a.Storage())
	}
	return nil, 0, fmt.Errorf("type %s cannot be compared", arr.DataType())
}
