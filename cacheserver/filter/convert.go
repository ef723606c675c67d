// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
)

// Convert converts the literal to a value of a column's type, or returns the reason why it does not fit.
func Convert(l syntax.Literal, typ iceberg.Type) (value iceberg.Literal, reason string) {
	switch t := typ.(type) {
	case iceberg.BooleanType:
		if l.Kind != syntax.BoolLiteral {
			return nil, "want TRUE or FALSE"
		}
		return iceberg.BoolLiteral(l.Value == "TRUE"), ""
	case iceberg.Int32Type:
		n, reason := integer(l, 32)
		return iceberg.Int32Literal(n), reason
	case iceberg.Int64Type:
		n, reason := integer(l, 64)
		return iceberg.Int64Literal(n), reason
	case iceberg.Float32Type:
		x, reason := float(l, 32)
		return iceberg.Float32Literal(x), reason
	case iceberg.Float64Type:
		x, reason := float(l, 64)
		return iceberg.Float64Literal(x), reason
	case iceberg.DecimalType:
		return decimal(l, t)
	case iceberg.StringType:
		if l.Kind != syntax.StringLiteral {
			return nil, "want a 'string'"
		}
		return iceberg.StringLiteral(l.Value), ""
	case iceberg.UUIDType:
		return parseUUID(l)
	case iceberg.BinaryType, iceberg.FixedType:
		return rawBytes(l, t)
	}
	return convertTime(l, typ)
}

func parseUUID(l syntax.Literal) (iceberg.Literal, string) {
	const want = "want a UUID such as '123e4567-e89b-12d3-a456-426614174000'"
	if l.Kind != syntax.StringLiteral && l.Kind != syntax.UUIDLiteral || len(l.Value) != 36 {
		return nil, want
	}
	value, err := iceberg.StringLiteral(l.Value).To(iceberg.PrimitiveTypes.UUID)
	if err != nil {
		return nil, want
	}
	return value, ""
}

func rawBytes(l syntax.Literal, typ iceberg.Type) (iceberg.Literal, string) {
	if l.Kind != syntax.BytesLiteral {
		return nil, "want bytes such as X'0a1b'"
	}
	fixed, ok := typ.(iceberg.FixedType)
	if !ok {
		return iceberg.BinaryLiteral(l.Value), ""
	}
	if len(l.Value) != fixed.Len() {
		return nil, fmt.Sprintf("it has %d bytes, want %d", len(l.Value), fixed.Len())
	}
	return iceberg.FixedLiteral(l.Value), ""
}

// number is a decimal number: digits times ten to the power of exponent. Digits neither start nor end with 0, and are empty for zero.
type number struct {
	negative bool
	digits   string
	exponent int
}

// exponentLimit is far beyond the exponents of any column type.
const exponentLimit = 100_000

// parseNumber parses a number token. ok is false if the exponent is out of bounds.
func parseNumber(text string) (number, bool) {
	text, negative := strings.CutPrefix(text, "-")
	mantissa, power, _ := strings.Cut(text, "e")
	exponent := 0
	if power != "" {
		var err error
		if exponent, err = strconv.Atoi(power); err != nil || max(exponent, -exponent) > exponentLimit {
			return number{}, false
		}
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	trimmed := strings.TrimRight(digits, "0")
	return number{negative, trimmed, exponent - len(fraction) + len(digits) - len(trimmed)}, true
}

// scaled returns the digits of the number times ten to the power of scale; ok is false if that is not an integer of at most count
// digits.
func (n number) scaled(scale, count int) (string, bool) {
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

func integer(l syntax.Literal, bits int) (int64, string) {
	want := fmt.Sprintf("want an integer from %d to %d", int64(math.MinInt64)>>(64-bits), int64(math.MaxInt64)>>(64-bits))
	if l.Kind != syntax.NumberLiteral {
		return 0, want
	}
	n, ok := parseNumber(l.Value)
	if !ok {
		return 0, want
	}
	text, ok := n.scaled(0, 19)
	if !ok {
		return 0, want
	}
	value, err := strconv.ParseInt(text, 10, bits)
	if err != nil {
		return 0, want
	}
	return value, ""
}

func float(l syntax.Literal, bits int) (float64, string) {
	if l.Kind != syntax.NumberLiteral {
		return 0, "want a number"
	}
	value, err := strconv.ParseFloat(l.Value, bits)
	if err != nil {
		return 0, "the number is too large"
	}
	if value == 0 && strings.ContainsAny(strings.Split(l.Value, "e")[0], "123456789") {
		return 0, "the number is too small to tell from 0"
	}
	return value, ""
}

func decimal(l syntax.Literal, t iceberg.DecimalType) (iceberg.Literal, string) {
	want := fmt.Sprintf("want a number with at most %d digits before and %d behind the point", t.Precision()-t.Scale(), t.Scale())
	if l.Kind != syntax.NumberLiteral {
		return nil, want
	}
	n, ok := parseNumber(l.Value)
	if !ok {
		return nil, want
	}
	text, ok := n.scaled(t.Scale(), t.Precision())
	if !ok {
		return nil, want
	}
	unscaled, ok := new(big.Int).SetString(text, 10)
	if !ok {
		return nil, want
	}
	value, err := iceberg.LiteralFromBytes(t, complement(unscaled))
	if err != nil {
		return nil, want
	}
	return value, ""
}

// complement encodes a number of up to 38 digits as a 16-byte big-endian two's complement integer: the Iceberg spec's binary form of
// a decimal.
func complement(n *big.Int) []byte {
	if n.Sign() < 0 {
		n = new(big.Int).Add(n, new(big.Int).Lsh(big.NewInt(1), 128))
	}
	return n.FillBytes(make([]byte, 16))
}
