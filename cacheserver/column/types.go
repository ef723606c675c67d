// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package column

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/float16"

	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
)

// Type is what is known of the types with one Arrow id whose values can be compared.
type Type struct {
	Kind Kind
	// name is the type's name in messages.
	name func(t arrow.DataType) string
	// parse converts the literal of a filter to a value, or returns the reason why it does not fit.
	parse func(l syntax.Literal, t arrow.DataType) (Value, string)
	// cells returns the cells of an array as one of the types of Cells.
	cells func(arr arrow.Array) any
	// decode and encode convert a value from and to its bytes; see Decode. Both return false if the bytes or the value don't fit the type.
	decode func(raw []byte, t arrow.DataType) (Value, bool)
	encode func(v Value, t arrow.DataType) ([]byte, bool)
}

// types has a row for each Arrow type whose values can be compared. Extensions have the row of their storage, except for UUIDs.
var types = map[arrow.Type]Type{
	arrow.BOOL: {
		Int, named("boolean"), parseBool, func(arr arrow.Array) any { return Bits(arr.(*array.Boolean).Value) },
		func(raw []byte, _ arrow.DataType) (Value, bool) {
			return IntValue(BoolInt(len(raw) == 1 && raw[0] != 0)), len(raw) == 1
		},
		func(v Value, _ arrow.DataType) ([]byte, bool) { return []byte{byte(v.Int)}, v.Int == 0 || v.Int == 1 },
	},
	arrow.INT8:    integers[int8](named("int8"), parseInteger[int8]),
	arrow.INT16:   integers[int16](named("int16"), parseInteger[int16]),
	arrow.UINT8:   integers[uint8](named("uint8"), parseInteger[uint8]),
	arrow.UINT16:  integers[uint16](named("uint16"), parseInteger[uint16]),
	arrow.UINT32:  integers[uint32](named("uint32"), parseInteger[uint32]),
	arrow.UINT64:  {Decimal, named("uint64"), parseUint64, fixedWidth[uint64], decodeUint64, encodeUint64},
	arrow.INT32:   integers[int32](named("int"), parseInteger[int32]),
	arrow.INT64:   integers[int64](named("long"), parseInteger[int64]),
	arrow.DATE32:  integers[int32](named("date"), parseDate),
	arrow.TIME32:  integers[int32](named("time"), parseTime),
	arrow.TIME64:  integers[int64](named("time"), parseTime),
	arrow.FLOAT16: {Float, named("half"), parseHalf, fixedWidth[float16.Num], decodeHalf, encodeHalf},
	arrow.FLOAT32: floats[float32]("float"),
	arrow.FLOAT64: floats[float64]("double"),
	arrow.TIMESTAMP: integers[int64](func(t arrow.DataType) string {
		name, of := "timestamp", t.(*arrow.TimestampType)
		if of.TimeZone != "" {
			name += "tz"
		}
		if of.Unit != arrow.Microsecond {
			name += "_" + of.Unit.String()
		}
		return name
	}, parseTimestamp),
	arrow.DURATION: integers[int64](func(t arrow.DataType) string { // compared with numbers of its unit
		return "duration_" + t.(*arrow.DurationType).Unit.String()
	}, parseInteger[int64]),
	arrow.DECIMAL128: {
		Decimal, func(t arrow.DataType) string {
			d := t.(*arrow.Decimal128Type)
			return fmt.Sprintf("decimal(%d, %d)", d.Precision, d.Scale)
		}, parseDecimal, fixedWidth[decimal128.Num], decodeDecimal, encodeDecimal,
	},
	arrow.STRING: texts(named("string"), parseString, func(arr arrow.Array) Texts {
		a := arr.(*array.String)
		return func(i int) string { return a.Value(i) }
	}),
	arrow.BINARY: texts(named("binary"), parseBytes, func(arr arrow.Array) Texts {
		a := arr.(*array.Binary)
		return func(i int) string { return a.ValueString(i) }
	}),
	arrow.FIXED_SIZE_BINARY: texts(func(t arrow.DataType) string { return fmt.Sprintf("fixed[%d]", widthOf(t)) }, parseBytes, fixedTexts),
	arrow.EXTENSION:         texts(named("uuid"), parseUUID, fixedTexts), // arrow.uuid
}

// TypeOf returns the row of a type; false if its values cannot be compared.
func TypeOf(t arrow.DataType) (Type, bool) {
	if ext, ok := t.(arrow.ExtensionType); ok && ext.ExtensionName() != "arrow.uuid" {
		return TypeOf(ext.StorageType())
	}
	row, ok := types[t.ID()]
	return row, ok
}

// Name is the name of a type in messages.
func Name(t arrow.DataType) string {
	if row, ok := TypeOf(t); ok {
		return row.name(t)
	}
	switch t := t.(type) {
	case *arrow.ListType:
		return fmt.Sprintf("list<%s>", Name(t.Elem()))
	case *arrow.MapType:
		return fmt.Sprintf("map<%s, %s>", Name(t.KeyType()), Name(t.ItemType()))
	}
	return t.String()
}

// Parse converts the literal of a filter to a value of a type, or returns the reason why it does not fit.
func Parse(l syntax.Literal, t arrow.DataType) (v Value, reason string) {
	row, ok := TypeOf(t)
	if !ok {
		return v, "values of this type cannot be compared"
	}
	return row.parse(l, t)
}

// Decode returns the value of a type with the given bytes, as the binary single-value serialization of the Iceberg specification and
// the statistics of Parquet have them: little-endian, except for decimals. It returns false if they don't fit the type.
func Decode(raw []byte, t arrow.DataType) (v Value, ok bool) {
	if row, known := TypeOf(t); known {
		return row.decode(raw, t)
	}
	return v, false
}

// Encode returns the bytes of a value, for Decode; an error if it does not fit the type.
func Encode(v Value, t arrow.DataType) ([]byte, error) {
	row, ok := TypeOf(t)
	if !ok || row.Kind != v.Kind {
		return nil, fmt.Errorf("%s is no value of type %s", v, Name(t))
	}
	raw, ok := row.encode(v, t)
	if !ok {
		return nil, fmt.Errorf("it does not fit type %s", Name(t))
	}
	return raw, nil
}

// Bits are the cells of an array of booleans.
type Bits func(i int) bool

// Texts are the cells of an array of kind Bytes; they share its memory.
type Texts func(i int) string

// Cells returns the cells of an array: Bits, a slice of integers, []float16.Num, []float32, []float64, []decimal128.Num or Texts. Those of
// nulls are arbitrary. The values of []uint64 are of kind Decimal, those of other integers of kind Int.
func Cells(arr arrow.Array) (any, error) {
	row, ok := TypeOf(arr.DataType())
	if !ok {
		return nil, fmt.Errorf("type %s cannot be compared", arr.DataType())
	}
	if ext, ok := arr.(array.ExtensionArray); ok {
		arr = ext.Storage()
	}
	return row.cells(arr), nil
}

func named(name string) func(arrow.DataType) string {
	return func(arrow.DataType) string { return name }
}

// fixedWidth returns the cells of an array of fixed width.
func fixedWidth[T arrow.FixedWidthType](arr arrow.Array) any {
	d := arr.Data()
	if d.Buffers()[1] == nil { // there are none
		return []T{}
	}
	return arrow.GetData[T](d.Buffers()[1].Bytes())[d.Offset():][:d.Len()]
}

// number returns the number that raw holds; false if it has another length.
func number[T Integer | uint64 | float32 | float64](raw []byte) (v T, ok bool) {
	if len(raw) != int(unsafe.Sizeof(v)) {
		return v, false
	}
	_, err := binary.Decode(raw, binary.LittleEndian, &v)
	return v, err == nil
}

// Integer are the integers whose values are of kind Int.
type Integer interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32
}

// integers is the row of types that are stored as T.
func integers[T Integer](name func(arrow.DataType) string, parse func(syntax.Literal, arrow.DataType) (Value, string)) Type {
	return Type{
		Int, name, parse, fixedWidth[T],
		func(raw []byte, _ arrow.DataType) (Value, bool) {
			v, ok := number[T](raw)
			return IntValue(int64(v)), ok
		},
		func(v Value, _ arrow.DataType) ([]byte, bool) {
			return slices.Clone(arrow.GetBytes([]T{T(v.Int)})), int64(T(v.Int)) == v.Int
		},
	}
}

func decodeUint64(raw []byte, _ arrow.DataType) (Value, bool) {
	v, ok := number[uint64](raw)
	return DecimalValue(decimal128.FromU64(v)), ok
}

func encodeUint64(v Value, _ arrow.DataType) ([]byte, bool) {
	return slices.Clone(arrow.GetBytes([]uint64{v.Decimal.LowBits()})), v.Decimal.HighBits() == 0
}

func decodeHalf(raw []byte, _ arrow.DataType) (Value, bool) {
	bits, ok := number[uint16](raw)
	return FloatValue(float64(float16.FromBits(bits).Float32())), ok
}

func encodeHalf(v Value, _ arrow.DataType) ([]byte, bool) {
	half := float16.New(float32(v.Float))
	return slices.Clone(arrow.GetBytes([]uint16{half.Uint16()})), v.Float != v.Float || float64(half.Float32()) == v.Float
}

func floats[T float32 | float64](name string) Type {
	return Type{
		Float, named(name), parseFloat[T], fixedWidth[T],
		func(raw []byte, _ arrow.DataType) (Value, bool) {
			v, ok := number[T](raw)
			return FloatValue(float64(v)), ok
		},
		func(v Value, _ arrow.DataType) ([]byte, bool) { return arrow.GetBytes([]T{T(v.Float)}), true },
	}
}

// widthOf is the length of all values of a type; 0 if they have different ones.
func widthOf(t arrow.DataType) int {
	if ext, ok := t.(arrow.ExtensionType); ok {
		t = ext.StorageType()
	}
	if fixed, ok := t.(*arrow.FixedSizeBinaryType); ok {
		return fixed.ByteWidth
	}
	return 0
}

// texts is the row of types whose values are bytes.
func texts(name func(arrow.DataType) string, parse func(syntax.Literal, arrow.DataType) (Value, string), cells func(arrow.Array) Texts) Type {
	fits := func(n int, t arrow.DataType) bool { w := widthOf(t); return w == 0 || w == n }
	return Type{
		Bytes, name, parse, func(arr arrow.Array) any { return cells(arr) },
		func(raw []byte, t arrow.DataType) (Value, bool) { return BytesValue(string(raw)), fits(len(raw), t) },
		func(v Value, t arrow.DataType) ([]byte, bool) { return []byte(v.Bytes), fits(len(v.Bytes), t) },
	}
}

func fixedTexts(arr arrow.Array) Texts {
	fixed := arr.(*array.FixedSizeBinary)
	return func(i int) string {
		b := fixed.Value(i)
		return unsafe.String(unsafe.SliceData(b), len(b))
	}
}

// decodeDecimal decodes a big-endian two's complement of at most 16 bytes.
func decodeDecimal(raw []byte, _ arrow.DataType) (Value, bool) {
	if len(raw) == 0 || len(raw) > arrow.Decimal128SizeBytes {
		return Value{}, false
	}
	var wide [arrow.Decimal128SizeBytes]byte
	if raw[0]&0x80 != 0 {
		copy(wide[:], slices.Repeat([]byte{0xff}, len(wide)))
	}
	copy(wide[len(wide)-len(raw):], raw)
	return DecimalValue(decimal128.New(int64(binary.BigEndian.Uint64(wide[:])), binary.BigEndian.Uint64(wide[8:]))), true
}

func encodeDecimal(v Value, t arrow.DataType) ([]byte, bool) {
	raw := binary.BigEndian.AppendUint64(nil, uint64(v.Decimal.HighBits()))
	return binary.BigEndian.AppendUint64(raw, v.Decimal.LowBits()), v.Decimal.FitsInPrecision(t.(*arrow.Decimal128Type).Precision)
}
