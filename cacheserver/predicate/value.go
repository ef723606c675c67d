// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate

import (
	"cmp"
	"fmt"
	"math"
	"strconv"

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

// String formats the value for messages.
func (v Value) String() string {
	switch v.Kind {
	case KindFloat:
		return strconv.FormatFloat(v.Float, 'g', -1, 64)
	case KindBytes:
		if len(v.Bytes) > longestShown {
			return strconv.Quote(v.Bytes[:longestShown]) + "..."
		}
		return strconv.Quote(v.Bytes)
	case KindDecimal:
		return v.Decimal.ToString(0)
	}
	return count(v.Int)
}

// longestShown is the number of bytes of a value that messages show.
const longestShown = 40

func count(n int64) string { return strconv.FormatInt(n, 10) }
