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
	"github.com/apache/arrow-go/v18/arrow/float16"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/uuid"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
)

// column is a column of the test's table; its id is its index in columns plus 1.
type testColumn struct {
	name   string
	arrow  arrow.DataType
	values []column.Value                // in ascending order, as the Iceberg specification orders the type
	cell   func(b array.Builder, at int) // appends one of values to the builder
	floats bool                          // cells may be NaN
}

// columnOf makes a column with values in ascending order. add appends a value to its builder.
func columnOf[T any](name string, to arrow.DataType, value func(T) column.Value, add func(array.Builder, T), values ...T) testColumn {
	c := testColumn{name: name, arrow: to, cell: func(b array.Builder, at int) { add(b, values[at]) }}
	for _, v := range values {
		c.values = append(c.values, value(v))
	}
	c.floats = c.values[0].Kind == column.Float
	return c
}

func ints[T column.Integer](v T) column.Value      { return column.IntValue(int64(v)) }
func floats[T float32 | float64](v T) column.Value { return column.FloatValue(float64(v)) }
func text[T string | []byte](v T) column.Value     { return column.BytesValue(string(v)) }

func timestamps(b array.Builder, v int64) {
	b.(*array.TimestampBuilder).Append(arrow.Timestamp(v))
}

// columns covers every type that can be compared; the last two are fields of a struct "g".
var columns = []testColumn{
	columnOf("bool", arrow.FixedWidthTypes.Boolean, func(v bool) column.Value { return column.IntValue(column.BoolInt(v)) },
		func(b array.Builder, v bool) { b.(*array.BooleanBuilder).Append(v) }, false, true),
	columnOf("i8", arrow.PrimitiveTypes.Int8, ints[int8],
		func(b array.Builder, v int8) { b.(*array.Int8Builder).Append(v) }, math.MinInt8, -1, 0, 7, math.MaxInt8),
	columnOf("i16", arrow.PrimitiveTypes.Int16, ints[int16],
		func(b array.Builder, v int16) { b.(*array.Int16Builder).Append(v) }, math.MinInt16, -1, 0, 7, math.MaxInt16),
	columnOf("u8", arrow.PrimitiveTypes.Uint8, ints[uint8],
		func(b array.Builder, v uint8) { b.(*array.Uint8Builder).Append(v) }, 0, 7, 1<<7, math.MaxUint8),
	columnOf("u16", arrow.PrimitiveTypes.Uint16, ints[uint16],
		func(b array.Builder, v uint16) { b.(*array.Uint16Builder).Append(v) }, 0, 7, 1<<15, math.MaxUint16),
	columnOf("u32", arrow.PrimitiveTypes.Uint32, ints[uint32],
		func(b array.Builder, v uint32) { b.(*array.Uint32Builder).Append(v) }, 0, 7, 1<<31, math.MaxUint32),
	columnOf("u64", arrow.PrimitiveTypes.Uint64, func(v uint64) column.Value { return column.DecimalValue(decimal128.FromU64(v)) },
		func(b array.Builder, v uint64) { b.(*array.Uint64Builder).Append(v) }, 0, 7, 1<<63, math.MaxUint64),
	columnOf("h", arrow.FixedWidthTypes.Float16, floats[float32],
		func(b array.Builder, v float32) { b.(*array.Float16Builder).Append(float16.New(v)) }, float32(math.Inf(-1)), -1.5, 0, 2, float32(math.Inf(1))),
	columnOf("time32", arrow.FixedWidthTypes.Time32ms, ints[int32],
		func(b array.Builder, v int32) { b.(*array.Time32Builder).Append(arrow.Time32(v)) }, 0, 1, 86399999),
	columnOf("i", arrow.PrimitiveTypes.Int32, ints[int32],
		func(b array.Builder, v int32) { b.(*array.Int32Builder).Append(v) }, math.MinInt32, -1, 0, 7, math.MaxInt32),
	columnOf("l", arrow.PrimitiveTypes.Int64, ints[int64],
		func(b array.Builder, v int64) { b.(*array.Int64Builder).Append(v) }, math.MinInt64, -1, 0, 7, math.MaxInt64),
	columnOf("f", arrow.PrimitiveTypes.Float32, floats[float32],
		func(b array.Builder, v float32) { b.(*array.Float32Builder).Append(v) }, float32(math.Inf(-1)), -1.5, 0, 2, float32(math.Inf(1))),
	columnOf("d", arrow.PrimitiveTypes.Float64, floats[float64],
		func(b array.Builder, v float64) { b.(*array.Float64Builder).Append(v) }, math.Inf(-1), -1e300, 0, 1e-300, math.Inf(1)),
	columnOf("date", arrow.FixedWidthTypes.Date32, ints[int32],
		func(b array.Builder, v int32) { b.(*array.Date32Builder).Append(arrow.Date32(v)) }, -400, 0, 20000),
	columnOf("time", arrow.FixedWidthTypes.Time64us, ints[int64],
		func(b array.Builder, v int64) { b.(*array.Time64Builder).Append(arrow.Time64(v)) }, 0, 1, 86399999999),
	columnOf("ts", &arrow.TimestampType{Unit: arrow.Microsecond}, ints[int64], timestamps, -1, 0, 1700000000000000),
	columnOf("tz", arrow.FixedWidthTypes.Timestamp_us, ints[int64], timestamps, -1, 0, 1700000000000000),
	columnOf("tsns", &arrow.TimestampType{Unit: arrow.Nanosecond}, ints[int64],
		timestamps, -1, 0, 5_000_000_000),
	columnOf("s", arrow.BinaryTypes.String, text[string],
		func(b array.Builder, v string) { b.(*array.StringBuilder).Append(v) }, "", "a", "ab", "abc", "b", "é", "éa", "\uffff", "\U0010FFFF"),
	columnOf("bin", arrow.BinaryTypes.Binary, text[[]byte],
		func(b array.Builder, v []byte) { b.(*array.BinaryBuilder).Append(v) }, []byte{}, []byte{0}, []byte{0, 1}, []byte{0x7f}, []byte{0x80}, []byte{0xff, 0}),
	columnOf("fix", &arrow.FixedSizeBinaryType{ByteWidth: 2}, text[[]byte],
		func(b array.Builder, v []byte) { b.(*array.FixedSizeBinaryBuilder).Append(v) }, []byte{0, 0}, []byte{0, 1}, []byte{0x7f, 0}, []byte{0x80, 0}, []byte{0xff, 0xff}),
	columnOf("u", extensions.NewUUIDType(), func(v uuid.UUID) column.Value { return column.BytesValue(string(v[:])) },
		func(b array.Builder, v uuid.UUID) { b.(*extensions.UUIDBuilder).Append(v) }, uuid.UUID{}, uuid.UUID{15: 1}, uuid.UUID{0: 0x7f}, uuid.UUID{0: 0x80}),
	columnOf("dec", &arrow.Decimal128Type{Precision: 38, Scale: 2}, column.DecimalValue,
		func(b array.Builder, v decimal128.Num) { b.(*array.Decimal128Builder).Append(v) },
		hundredths(-5, 0), hundredths(-1, 1<<63), hundredths(0, 0), hundredths(0, 125), hundredths(0, 1<<63), hundredths(1, 0)),
	columnOf("g.x", arrow.PrimitiveTypes.Int32, ints[int32],
		func(b array.Builder, v int32) { b.(*array.Int32Builder).Append(v) }, -7, 0, 7),
	columnOf("g.s", arrow.BinaryTypes.String, text[string],
		func(b array.Builder, v string) { b.(*array.StringBuilder).Append(v) }, "", "x", "xy"),
}

// structAt is the index of the struct's array, which follows the arrays of the top-level columns.
var structAt = len(columns) - 2

func hundredths(high int64, low uint64) decimal128.Num { return decimal128.New(high, low) }

func columnAt(name string) int {
	for at, c := range columns {
		if c.name == name {
			return at
		}
	}
	return -1
}

func contains(err error, text string) bool { return strings.Contains(err.Error(), text) }

// is returns a test of the column with a name.
func is(name string, op syntax.Operator, values ...column.Value) syntax.Node {
	at := columnAt(name)
	return Test{Field: column.Field{ID: at + 1, Name: name, Type: columns[at].arrow}, Op: op, Values: values}
}

func not(n syntax.Node) syntax.Node      { return syntax.Not{Term: n} }
func and(all ...syntax.Node) syntax.Node { return syntax.Chain{Terms: all} }
func or(all ...syntax.Node) syntax.Node  { return syntax.Chain{Or: true, Terms: all} }

// compile compiles a filter.
func compile(t testing.TB, filter syntax.Node) *Filter {
	t.Helper()
	f, err := Compile(filter)
	if err != nil {
		t.Fatalf("%v: %v", filter, err)
	}
	return f
}

// paths locates the fields of a filter.
func paths(f *Filter) []column.Path {
	var all []column.Path
	for _, field := range f.Fields() {
		at := field.ID - 1
		p := column.Path{Column: at, Field: field}
		if at >= structAt {
			p = column.Path{Column: structAt, Kids: []int{at - structAt}, Field: field}
		}
		all = append(all, p)
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

func appendCell(b array.Builder, c testColumn, cell int) {
	switch cell {
	case null:
		b.AppendNull()
	case nan:
		switch b := b.(type) {
		case *array.Float16Builder:
			b.Append(float16.New(float32(math.NaN())))
		case *array.Float32Builder:
			b.Append(float32(math.NaN()))
		default:
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
