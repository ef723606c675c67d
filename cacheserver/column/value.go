// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package column

import (
	"cmp"
	"math"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow/decimal128"
)

// Kind is the way in which values of a type are compared.
type Kind int

// The kinds of values.
const (
	Int     Kind = iota // integers, dates, times, timestamps, booleans
	Float               // floating-point numbers; NaN is unordered, as in IEEE 754
	Bytes               // strings, binary, fixed, uuid: as unsigned bytes
	Decimal             // with equal scales
)

// Value is a cell or a literal. It is comparable, so that it can be a map key.
type Value struct {
	Kind    Kind
	Int     int64
	Float   float64
	Bytes   string
	Decimal decimal128.Num
}

// Unordered is the result of Compare if one value is NaN.
const Unordered = 2

// Compare returns -1, 0, 1 or Unordered; both values must be of the same kind.
func (v Value) Compare(w Value) int {
	switch v.Kind {
	case Float:
		if math.IsNaN(v.Float) || math.IsNaN(w.Float) {
			return Unordered
		}
		return cmp.Compare(v.Float, w.Float)
	case Bytes:
		return cmp.Compare(v.Bytes, w.Bytes)
	case Decimal:
		return v.Decimal.Cmp(w.Decimal)
	}
	return cmp.Compare(v.Int, w.Int)
}

// IntValue is a value of kind Int.
func IntValue(v int64) Value { return Value{Kind: Int, Int: v} }

// FloatValue is a value of kind Float.
func FloatValue(v float64) Value { return Value{Kind: Float, Float: v} }

// BytesValue is a value of kind Bytes.
func BytesValue(v string) Value { return Value{Kind: Bytes, Bytes: v} }

// DecimalValue is a value of kind Decimal.
func DecimalValue(v decimal128.Num) Value { return Value{Kind: Decimal, Decimal: v} }

// BoolInt is the integer of a boolean.
func BoolInt(v bool) int64 {
	if v {
		return 1
	}
	return 0
}

// longestShown is the number of bytes of a value that messages show.
const longestShown = 40

// String formats the value for messages.
func (v Value) String() string {
	switch v.Kind {
	case Float:
		return strconv.FormatFloat(v.Float, 'g', -1, 64)
	case Bytes:
		if len(v.Bytes) > longestShown {
			return strconv.Quote(v.Bytes[:longestShown]) + "..."
		}
		return strconv.Quote(v.Bytes)
	case Decimal:
		return v.Decimal.ToString(0)
	}
	return strconv.FormatInt(v.Int, 10)
}
