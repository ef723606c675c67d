// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package column

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/float16"
	"github.com/google/uuid"

	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
)

func parseBool(l syntax.Literal, _ arrow.DataType) (Value, string) {
	if l.Kind != syntax.BoolLiteral {
		return Value{}, "want TRUE or FALSE"
	}
	return IntValue(BoolInt(l.Value == "TRUE")), ""
}

func parseString(l syntax.Literal, _ arrow.DataType) (Value, string) {
	if l.Kind != syntax.StringLiteral {
		return Value{}, "want a 'string'"
	}
	return BytesValue(l.Value), ""
}

func parseUUID(l syntax.Literal, _ arrow.DataType) (Value, string) {
	value, err := uuid.Parse(l.Value)
	if l.Kind != syntax.StringLiteral && l.Kind != syntax.UUIDLiteral || len(l.Value) != 36 || err != nil {
		return Value{}, "want a UUID such as '123e4567-e89b-12d3-a456-426614174000'"
	}
	return BytesValue(string(value[:])), ""
}

func parseBytes(l syntax.Literal, t arrow.DataType) (Value, string) {
	if l.Kind != syntax.BytesLiteral {
		return Value{}, "want bytes such as X'0a1b'"
	}
	if w := widthOf(t); w > 0 && len(l.Value) != w {
		return Value{}, fmt.Sprintf("it has %d bytes, want %d", len(l.Value), w)
	}
	return BytesValue(l.Value), ""
}

// decimalNumber is digits times ten to the power of exponent. Digits neither start nor end with 0, and are empty for zero.
type decimalNumber struct {
	negative bool
	digits   string
	exponent int
}

// exponentLimit is far beyond the exponents of any column type.
const exponentLimit = 100_000

// parseNumber parses a literal; ok is false if it is no number or its exponent is out of bounds.
func parseNumber(l syntax.Literal) (n decimalNumber, ok bool) {
	text, negative := strings.CutPrefix(l.Value, "-")
	mantissa, power, _ := strings.Cut(text, "e")
	exponent := 0
	if power != "" {
		var err error
		if exponent, err = strconv.Atoi(power); err != nil || max(exponent, -exponent) > exponentLimit {
			return n, false
		}
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	trimmed := strings.TrimRight(digits, "0")
	return decimalNumber{negative, trimmed, exponent - len(fraction) + len(digits) - len(trimmed)}, l.Kind == syntax.NumberLiteral
}

// scaled returns the digits of the number times ten to the power of scale; ok is false if that is not an integer of at most count
// digits.
func (n decimalNumber) scaled(scale, count int) (string, bool) {
	zeros := n.exponent + scale
	if n.digits == "" {
		return "0", true
	}
	if zeros < 0 || len(n.digits)+zeros > count {
		return "", false
	}
	text := n.digits + strings.Repeat("0", zeros)
	if n.negative {
		text = "-" + text
	}
	return text, true
}

func parseInteger[T Integer](l syntax.Literal, _ arrow.DataType) (Value, string) {
	bits := 8 * int(unsafe.Sizeof(T(0)))
	least, most := int64(math.MinInt64)>>(64-bits), int64(math.MaxInt64)>>(64-bits)
	if T(0)-1 > 0 { // unsigned
		least, most = 0, int64(1)<<bits-1
	}
	if n, ok := parseNumber(l); ok {
		if text, ok := n.scaled(0, 19); ok {
			if value, err := strconv.ParseInt(text, 10, 64); err == nil && least <= value && value <= most {
				return IntValue(value), ""
			}
		}
	}
	return Value{}, fmt.Sprintf("want an integer from %d to %d", least, most)
}

func parseUint64(l syntax.Literal, _ arrow.DataType) (Value, string) {
	if n, ok := parseNumber(l); ok {
		if text, ok := n.scaled(0, 20); ok {
			if value, err := strconv.ParseUint(text, 10, 64); err == nil {
				return DecimalValue(decimal128.FromU64(value)), ""
			}
		}
	}
	return Value{}, fmt.Sprintf("want an integer from 0 to %d", uint64(math.MaxUint64))
}

// parseHalf parses a number and rounds it to the nearest one of 16 bits.
func parseHalf(l syntax.Literal, t arrow.DataType) (Value, string) {
	v, reason := parseFloat[float32](l, t)
	if reason != "" {
		return v, reason
	}
	half := float64(float16.New(float32(v.Float)).Float32())
	switch {
	case math.IsInf(half, 0):
		return Value{}, "the number is too large"
	case half == 0 && v.Float != 0:
		return Value{}, "the number is too small to tell from 0"
	}
	return FloatValue(half), ""
}

func parseFloat[T float32 | float64](l syntax.Literal, _ arrow.DataType) (Value, string) {
	if l.Kind != syntax.NumberLiteral {
		return Value{}, "want a number"
	}
	value, err := strconv.ParseFloat(l.Value, 8*int(unsafe.Sizeof(T(0))))
	if err != nil {
		return Value{}, "the number is too large"
	}
	if value == 0 && strings.ContainsAny(strings.Split(l.Value, "e")[0], "123456789") {
		return Value{}, "the number is too small to tell from 0"
	}
	return FloatValue(value), ""
}

func parseDecimal(l syntax.Literal, t arrow.DataType) (Value, string) {
	precision, scale := int(t.(*arrow.Decimal128Type).Precision), int(t.(*arrow.Decimal128Type).Scale)
	if n, ok := parseNumber(l); ok {
		if text, ok := n.scaled(scale, precision); ok {
			if unscaled, ok := new(big.Int).SetString(text, 10); ok {
				return DecimalValue(decimal128.FromBigInt(unscaled)), ""
			}
		}
	}
	return Value{}, fmt.Sprintf("want a number with at most %d digits before and %d behind the point", precision-scale, scale)
}
