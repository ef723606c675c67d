// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package column

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/float16"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
)

// TestRows checks of every row of the table that its name is Iceberg's, and that a literal, the cells of an array and the bytes of a value
// are the same value.
func TestRows(t *testing.T) {
	at := func(unit arrow.TimeUnit, zone string) arrow.DataType {
		return &arrow.TimestampType{Unit: unit, TimeZone: zone}
	}
	number := func(text string) syntax.Literal { return syntax.Literal{Kind: syntax.NumberLiteral, Value: text} }
	tests := []struct {
		typ     arrow.DataType
		name    string
		literal syntax.Literal
		json    string
		want    Value
	}{
		{arrow.FixedWidthTypes.Boolean, "boolean", syntax.Literal{Kind: syntax.BoolLiteral, Value: "TRUE"}, `true`, IntValue(1)},
		{arrow.PrimitiveTypes.Int8, "int8", number("-128"), `-128`, IntValue(-128)},
		{arrow.PrimitiveTypes.Int16, "int16", number("-32768"), `-32768`, IntValue(-32768)},
		{arrow.PrimitiveTypes.Uint8, "uint8", number("255"), `255`, IntValue(255)},
		{arrow.PrimitiveTypes.Uint16, "uint16", number("65535"), `65535`, IntValue(65535)},
		{arrow.PrimitiveTypes.Uint32, "uint32", number("4294967295"), `4294967295`, IntValue(4294967295)},
		{arrow.PrimitiveTypes.Uint64, "uint64", number("18446744073709551615"), `18446744073709551615`, DecimalValue(decimal128.FromU64(math.MaxUint64))},
		{arrow.FixedWidthTypes.Float16, "half", number("0.1"), `0.1`, FloatValue(0.0999755859375)},
		{arrow.FixedWidthTypes.Time32ms, "time", syntax.Literal{Kind: syntax.TimeLiteral, Value: "00:00:01.5"}, `"00:00:01.5"`, IntValue(1500)},
		{arrow.FixedWidthTypes.Duration_ms, "duration_ms", number("-7"), `-7`, IntValue(-7)},
		{arrow.PrimitiveTypes.Int32, "int", syntax.Literal{Kind: syntax.NumberLiteral, Value: "-7"}, `-7`, IntValue(-7)},
		{arrow.PrimitiveTypes.Int64, "long", syntax.Literal{Kind: syntax.NumberLiteral, Value: "9e18"}, `9000000000000000000`, IntValue(9e18)},
		{arrow.PrimitiveTypes.Float32, "float", syntax.Literal{Kind: syntax.NumberLiteral, Value: "-1.5"}, `-1.5`, FloatValue(-1.5)},
		{arrow.PrimitiveTypes.Float64, "double", syntax.Literal{Kind: syntax.NumberLiteral, Value: "1e300"}, `1e300`, FloatValue(1e300)},
		{&arrow.Decimal128Type{Precision: 9, Scale: 2}, "decimal(9, 2)", syntax.Literal{Kind: syntax.NumberLiteral, Value: "-1.25"}, `"-1.25"`, DecimalValue(decimal128.FromI64(-125))},
		{arrow.FixedWidthTypes.Date32, "date", syntax.Literal{Kind: syntax.DateLiteral, Value: "1969-12-31"}, `"1969-12-31"`, IntValue(-1)},
		{arrow.FixedWidthTypes.Time64us, "time", syntax.Literal{Kind: syntax.TimeLiteral, Value: "00:00:01.5"}, `"00:00:01.5"`, IntValue(1500000)},
		{at(arrow.Microsecond, ""), "timestamp", syntax.Literal{Kind: syntax.TimestampLiteral, Value: "1970-01-01 00:00:01"}, `"1970-01-01 00:00:01"`, IntValue(1e6)},
		{at(arrow.Microsecond, "UTC"), "timestamptz", syntax.Literal{Kind: syntax.TimestampLiteral, Value: "1970-01-01 01:00:01+01"}, `"1970-01-01 00:00:01Z"`, IntValue(1e6)},
		{at(arrow.Nanosecond, ""), "timestamp_ns", syntax.Literal{Kind: syntax.TimestampLiteral, Value: "1970-01-01 00:00:01"}, `"1970-01-01 00:00:01"`, IntValue(1e9)},
		{at(arrow.Nanosecond, "UTC"), "timestamptz_ns", syntax.Literal{Kind: syntax.TimestampLiteral, Value: "1970-01-01T00:00:01Z"}, `"1970-01-01 00:00:01Z"`, IntValue(1e9)},
		{arrow.BinaryTypes.String, "string", syntax.Literal{Kind: syntax.StringLiteral, Value: "é"}, `"é"`, BytesValue("é")},
		{arrow.BinaryTypes.Binary, "binary", syntax.Literal{Kind: syntax.BytesLiteral, Value: "abc"}, `"YWJj"`, BytesValue("abc")},
		{&arrow.FixedSizeBinaryType{ByteWidth: 3}, "fixed[3]", syntax.Literal{Kind: syntax.BytesLiteral, Value: "abc"}, `"YWJj"`, BytesValue("abc")},
		{extensions.NewUUIDType(), "uuid", syntax.Literal{Kind: syntax.StringLiteral, Value: "30313233-3435-3637-3839-616263646566"}, `"30313233-3435-3637-3839-616263646566"`, BytesValue("0123456789abcdef")},
	}
	seen := map[arrow.Type]bool{}
	for _, tt := range tests {
		seen[tt.typ.ID()] = true
		t.Run(tt.name, func(t *testing.T) {
			if got := Name(tt.typ); got != tt.name {
				t.Errorf("it is named %s", got)
			}
			if got, reason := Parse(tt.literal, tt.typ); got != tt.want || reason != "" {
				t.Errorf("literal %s is %v (%s), want %v", tt.literal, got, reason, tt.want)
			}
			raw, err := Encode(tt.want, tt.typ)
			if got, ok := Decode(raw, tt.typ); got != tt.want || !ok || err != nil {
				t.Errorf("%v is %x (%v), and that %v", tt.want, raw, err, got)
			}
			values, _, err := array.FromJSON(memory.DefaultAllocator, tt.typ, strings.NewReader("[null,"+tt.json+"]"))
			if err != nil {
				t.Fatal(err)
			}
			if got := first(t, array.NewSlice(values, 1, 2)); got != tt.want {
				t.Errorf("the cell %s is %v, want %v", tt.json, got, tt.want)
			}
		})
	}
	for id := range types {
		if !seen[id] {
			t.Errorf("no case for the row of %s", id)
		}
	}
}

// first is the first cell of an array.
func first(t *testing.T, arr arrow.Array) Value {
	t.Helper()
	cells, err := Cells(arr)
	if err != nil {
		t.Fatal(err)
	}
	switch cells := cells.(type) {
	case Bits:
		return IntValue(BoolInt(cells(0)))
	case []int8:
		return IntValue(int64(cells[0]))
	case []int16:
		return IntValue(int64(cells[0]))
	case []uint8:
		return IntValue(int64(cells[0]))
	case []uint16:
		return IntValue(int64(cells[0]))
	case []uint32:
		return IntValue(int64(cells[0]))
	case []uint64:
		return DecimalValue(decimal128.FromU64(cells[0]))
	case []float16.Num:
		return FloatValue(float64(cells[0].Float32()))
	case []int32:
		return IntValue(int64(cells[0]))
	case []int64:
		return IntValue(cells[0])
	case []float32:
		return FloatValue(float64(cells[0]))
	case []float64:
		return FloatValue(cells[0])
	case []decimal128.Num:
		return DecimalValue(cells[0])
	case Texts:
		return BytesValue(cells(0))
	}
	t.Fatalf("cells of type %T", cells)
	return Value{}
}

// TestDoesNotFit checks that a value that a type cannot hold has no bytes of it, and that other bytes are no value of it.
func TestDoesNotFit(t *testing.T) {
	decimal := &arrow.Decimal128Type{Precision: 2}
	for i, tt := range []struct {
		v   Value
		typ arrow.DataType
	}{
		{IntValue(2), arrow.FixedWidthTypes.Boolean}, {IntValue(-1), arrow.PrimitiveTypes.Uint8}, {IntValue(1 << 32), arrow.PrimitiveTypes.Uint32},
		{DecimalValue(decimal128.FromI64(-1)), arrow.PrimitiveTypes.Uint64}, {FloatValue(0.1), arrow.FixedWidthTypes.Float16}, {IntValue(1 << 31), arrow.PrimitiveTypes.Int32}, {FloatValue(1), arrow.PrimitiveTypes.Int64},
		{DecimalValue(decimal128.FromI64(100)), decimal}, {BytesValue("ab"), &arrow.FixedSizeBinaryType{ByteWidth: 3}}, {BytesValue("ab"), extensions.NewUUIDType()},
		{IntValue(1), arrow.ListOf(arrow.PrimitiveTypes.Int32)},
	} {
		if raw, err := Encode(tt.v, tt.typ); err == nil {
			t.Errorf("%d: %v as %s is %x", i, tt.v, tt.typ, raw)
		}
	}
	for _, typ := range []arrow.DataType{arrow.FixedWidthTypes.Boolean, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Float64, decimal, extensions.NewUUIDType(), arrow.Null} {
		if v, ok := Decode(make([]byte, 17), typ); ok {
			t.Errorf("17 bytes are %v as %s", v, fmt.Sprint(typ))
		}
	}
}
