// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/memory"
	ice "github.com/apache/iceberg-go"
	"github.com/google/uuid"
)

// newRand returns a generator with a random seed, which is logged so that a failure can be reproduced.
func newRand(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// column is a column of the test's table; its id is its index in columns plus 1.
type column struct {
	name   string
	typ    ice.Type
	arrow  arrow.DataType
	values []ice.Literal // in ascending order, as the Iceberg specification orders the type
	value  func(at int) Value
	cell   func(b array.Builder, at int) // appends one of values to the builder
	floats bool                          // cells may be NaN
	prefix func(at, of int) bool         // whether one value is a prefix of another; nil: the type has no prefixes
}

// columnOf makes a column with values in ascending order. T is the Go type of its literals; add appends a value to its builder.
func columnOf[T ice.LiteralType](name string, typ ice.Type, to arrow.DataType, value func(T) Value, add func(array.Builder, T), values ...T) column {
	c := column{name: name, typ: typ, arrow: to}
	for _, v := range values {
		c.values = append(c.values, ice.NewLiteral(v))
	}
	c.value = func(at int) Value { return value(values[at]) }
	c.cell = func(b array.Builder, at int) { add(b, values[at]) }
	switch texts := any(values).(type) {
	case []string:
		c.prefix = func(at, of int) bool { return strings.HasPrefix(texts[at], texts[of]) }
	case [][]byte:
		if typ == ice.PrimitiveTypes.Binary {
			c.prefix = func(at, of int) bool { return strings.HasPrefix(string(texts[at]), string(texts[of])) }
		}
	case []float32, []float64:
		c.floats = true
	}
	return c
}

func ints[T ~int32 | ~int64](v T) Value     { return IntValue(int64(v)) }
func floats[T float32 | float64](v T) Value { return FloatValue(float64(v)) }
func text[T string | []byte](v T) Value     { return BytesValue(string(v)) }

func timestamps(b array.Builder, v ice.Timestamp) {
	b.(*array.TimestampBuilder).Append(arrow.Timestamp(v))
}

// columns covers every type that can be compared; the last two are fields of a struct "g".
var columns = []column{
	columnOf("bool", ice.PrimitiveTypes.Bool, arrow.FixedWidthTypes.Boolean, func(v bool) Value { return IntValue(boolInt(v)) },
		func(b array.Builder, v bool) { b.(*array.BooleanBuilder).Append(v) }, false, true),
	columnOf("i", ice.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int32, ints[int32],
		func(b array.Builder, v int32) { b.(*array.Int32Builder).Append(v) }, math.MinInt32, -1, 0, 7, math.MaxInt32),
	columnOf("l", ice.PrimitiveTypes.Int64, arrow.PrimitiveTypes.Int64, ints[int64],
		func(b array.Builder, v int64) { b.(*array.Int64Builder).Append(v) }, math.MinInt64, -1, 0, 7, math.MaxInt64),
	columnOf("f", ice.PrimitiveTypes.Float32, arrow.PrimitiveTypes.Float32, floats[float32],
		func(b array.Builder, v float32) { b.(*array.Float32Builder).Append(v) }, float32(math.Inf(-1)), -1.5, 0, 2, float32(math.Inf(1))),
	columnOf("d", ice.PrimitiveTypes.Float64, arrow.PrimitiveTypes.Float64, floats[float64],
		func(b array.Builder, v float64) { b.(*array.Float64Builder).Append(v) }, math.Inf(-1), -1e300, 0, 1e-300, math.Inf(1)),
	columnOf("date", ice.PrimitiveTypes.Date, arrow.FixedWidthTypes.Date32, ints[ice.Date],
		func(b array.Builder, v ice.Date) { b.(*array.Date32Builder).Append(arrow.Date32(v)) }, -400, 0, 20000),
	columnOf("time", ice.PrimitiveTypes.Time, arrow.FixedWidthTypes.Time64us, ints[ice.Time],
		func(b array.Builder, v ice.Time) { b.(*array.Time64Builder).Append(arrow.Time64(v)) }, 0, 1, 86399999999),
	columnOf("ts", ice.PrimitiveTypes.Timestamp, &arrow.TimestampType{Unit: arrow.Microsecond}, ints[ice.Timestamp], timestamps, -1, 0, 1700000000000000),
	columnOf("tz", ice.PrimitiveTypes.TimestampTz, arrow.FixedWidthTypes.Timestamp_us, ints[ice.Timestamp], timestamps, -1, 0, 1700000000000000),
	columnOf("tsns", ice.PrimitiveTypes.TimestampNs, &arrow.TimestampType{Unit: arrow.Nanosecond}, ints[ice.TimestampNano],
		func(b array.Builder, v ice.TimestampNano) { timestamps(b, ice.Timestamp(v)) }, -1, 0, 5_000_000_000),
	columnOf("s", ice.PrimitiveTypes.String, arrow.BinaryTypes.String, text[string],
		func(b array.Builder, v string) { b.(*array.StringBuilder).Append(v) }, "", "a", "ab", "abc", "b", "é", "éa", "\uffff", "\U0010FFFF"),
	columnOf("bin", ice.PrimitiveTypes.Binary, arrow.BinaryTypes.Binary, text[[]byte],
		func(b array.Builder, v []byte) { b.(*array.BinaryBuilder).Append(v) }, []byte{}, []byte{0}, []byte{0, 1}, []byte{0x7f}, []byte{0x80}, []byte{0xff, 0}),
	columnOf("fix", ice.FixedTypeOf(2), &arrow.FixedSizeBinaryType{ByteWidth: 2}, text[[]byte],
		func(b array.Builder, v []byte) { b.(*array.FixedSizeBinaryBuilder).Append(v) }, []byte{0, 0}, []byte{0, 1}, []byte{0x7f, 0}, []byte{0x80, 0}, []byte{0xff, 0xff}),
	columnOf("u", ice.PrimitiveTypes.UUID, extensions.NewUUIDType(), func(v uuid.UUID) Value { return BytesValue(string(v[:])) },
		func(b array.Builder, v uuid.UUID) { b.(*extensions.UUIDBuilder).Append(v) }, uuid.UUID{}, uuid.UUID{15: 1}, uuid.UUID{0: 0x7f}, uuid.UUID{0: 0x80}),
	columnOf("dec", ice.DecimalTypeOf(38, 2), &arrow.Decimal128Type{Precision: 38, Scale: 2}, func(v ice.Decimal) Value { return Value{Kind: KindDecimal, Decimal: v.Val} },
		func(b array.Builder, v ice.Decimal) { b.(*array.Decimal128Builder).Append(v.Val) },
		hundredths(-5, 0), hundredths(-1, 1<<63), hundredths(0, 0), hundredths(0, 125), hundredths(0, 1<<63), hundredths(1, 0)),
	columnOf("g.x", ice.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int32, ints[int32],
		func(b array.Builder, v int32) { b.(*array.Int32Builder).Append(v) }, -7, 0, 7),
	columnOf("g.s", ice.PrimitiveTypes.String, arrow.BinaryTypes.String, text[string],
		func(b array.Builder, v string) { b.(*array.StringBuilder).Append(v) }, "", "x", "xy"),
}

// structAt is the index of the struct's array, which follows the arrays of the top-level columns.
var structAt = len(columns) - 2

func hundredths(high int64, low uint64) ice.Decimal {
	return ice.Decimal{Val: decimal128.New(high, low), Scale: 2}
}

func columnAt(name string) int {
	for at, c := range columns {
		if c.name == name {
			return at
		}
	}
	return -1
}

func contains(err error, text string) bool { return strings.Contains(err.Error(), text) }

func schema() *ice.Schema {
	var fields, kids []ice.NestedField
	for at, c := range columns {
		if f := (ice.NestedField{ID: at + 1, Name: strings.TrimPrefix(c.name, "g."), Type: c.typ}); at < structAt {
			fields = append(fields, f)
		} else {
			kids = append(kids, f)
		}
	}
	return ice.NewSchema(0, append(fields, ice.NestedField{ID: 100, Name: "g", Type: &ice.StructType{FieldList: kids}})...)
}

func paths() map[int]Path {
	all := map[int]Path{}
	for at := range columns {
		all[at+1] = Path{Column: at}
		if at >= structAt {
			all[at+1] = Path{Column: structAt, Kids: []int{at - structAt}}
		}
	}
	return all
}

// arraysOf makes arrays of rows. They are slices of longer arrays. A struct whose fields are all null is itself null or not, at
// random.
func arraysOf(t *testing.T, rng *rand.Rand, rows []row) []arrow.Array {
	t.Helper()
	const before = 3
	kids := make([]arrow.Array, 0, len(columns))
	for at, c := range columns {
		b := array.NewBuilder(memory.DefaultAllocator, c.arrow)
		for range before {
			c.cell(b, len(c.values)-1)
		}
		for _, r := range rows {
			appendCell(b, c, r[at])
		}
		kids = append(kids, b.NewArray())
		b.Release()
	}
	fields := kids[structAt:]
	valid := make([]byte, (before+len(rows)+7)/8)
	nulls := 0
	for i := range before + len(rows) {
		if i < before || rows[i-before][structAt] != null || rows[i-before][structAt+1] != null || rng.IntN(2) == 0 {
			valid[i/8] |= 1 << (i % 8)
		} else {
			nulls++
		}
	}
	group, err := array.NewStructArrayWithNulls(hideBelow(t, fields, valid), []string{"x", "s"}, memory.NewBufferBytes(valid), nulls, 0)
	if err != nil {
		t.Fatal(err)
	}
	all := append(kids[:structAt:structAt], group)
	for i, a := range all {
		all[i] = array.NewSlice(a, before, int64(a.Len()))
	}
	return all
}

func appendCell(b array.Builder, c column, cell int) {
	switch cell {
	case null:
		b.AppendNull()
	case nan:
		if f, ok := b.(*array.Float32Builder); ok {
			f.Append(float32(math.NaN()))
		} else {
			b.(*array.Float64Builder).Append(math.NaN())
		}
	default:
		c.cell(b, cell)
	}
}

// hideBelow puts values into the fields where the struct is null, as writers may do: they must have no effect.
func hideBelow(t *testing.T, fields []arrow.Array, valid []byte) []arrow.Array {
	t.Helper()
	out := make([]arrow.Array, len(fields))
	for k, f := range fields {
		c := columns[structAt+k]
		b := array.NewBuilder(memory.DefaultAllocator, c.arrow)
		for i := range f.Len() {
			switch {
			case valid[i/8]&(1<<(i%8)) == 0:
				c.cell(b, len(c.values)-1)
			case f.IsNull(i):
				b.AppendNull()
			default:
				if err := b.AppendValueFromString(f.ValueStr(i)); err != nil {
					t.Fatal(err)
				}
			}
		}
		out[k] = b.NewArray()
		b.Release()
	}
	return out
}
