// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/float16"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

// dice generates random files with one column.
type dice struct{ *rand.Rand }

func newDice(t testing.TB, seed uint64) dice {
	t.Helper()
	t.Logf("seed %d", seed)
	return dice{rand.New(rand.NewPCG(seed, 7))}
}

func (d dice) chance(percent int) bool { return d.IntN(100) < percent }

func pick[T any](d dice, from ...T) T { return from[d.IntN(len(from))] }

// value returns a random primitive type.
func (d dice) value() arrow.DataType {
	return pick[arrow.DataType](d,
		arrow.FixedWidthTypes.Boolean, arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Int16, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64,
		arrow.PrimitiveTypes.Uint8, arrow.PrimitiveTypes.Uint16, arrow.PrimitiveTypes.Uint32, arrow.PrimitiveTypes.Uint64,
		arrow.PrimitiveTypes.Float32, arrow.PrimitiveTypes.Float64, arrow.FixedWidthTypes.Float16, arrow.FixedWidthTypes.Date32,
		arrow.FixedWidthTypes.Time32ms, arrow.FixedWidthTypes.Time64us, arrow.FixedWidthTypes.Time64ns,
		arrow.FixedWidthTypes.Timestamp_ms, arrow.FixedWidthTypes.Timestamp_us, &arrow.TimestampType{Unit: arrow.Nanosecond},
		&arrow.Decimal128Type{Precision: 1 + d.Int32N(38), Scale: 1},
		arrow.BinaryTypes.String, arrow.BinaryTypes.Binary, &arrow.FixedSizeBinaryType{ByteWidth: 1 + d.IntN(20)})
}

// field returns a random column.
func (d dice) field() arrow.Field {
	f := arrow.Field{Name: "c", Type: d.value(), Nullable: d.chance(60)}
	if d.chance(40) {
		f.Type = arrow.ListOfField(arrow.Field{Name: "element", Type: f.Type, Nullable: d.chance(60)})
	}
	return f
}

// style is the distribution of values.
type style struct {
	distinct uint64
	nulls    int // percent
	runs     int // length of runs of equal values
	length   int // of strings and lists
}

func (d dice) style() style {
	return style{distinct: pick[uint64](d, 1, 2, 5, 300, 1<<20, 1<<63), nulls: pick(d, 0, 0, 1, 10, 50, 100), runs: pick(d, 1, 1, 3, 40, 1000), length: pick(d, 0, 3, 20, 40, 200)}
}

// array returns n random rows of a field.
func (d dice) array(f arrow.Field, n int) arrow.Array {
	s := d.style()
	if s.length == 200 {
		n = n/10 + 1
	}
	b := array.NewBuilder(memory.DefaultAllocator, f.Type)
	defer b.Release()
	list, isList := b.(*array.ListBuilder)
	if !isList {
		d.values(b, s, f.Nullable, n)
		return b.NewArray()
	}
	elem := f.Type.(*arrow.ListType).ElemField()
	inner := s
	inner.nulls, inner.length = pick(d, 0, 0, 10, 100), pick(d, 0, 5, 40)
	for range n {
		if f.Nullable && d.chance(s.nulls) {
			list.AppendNull()
			continue
		}
		list.Append(true)
		d.values(list.ValueBuilder(), inner, elem.Nullable, d.IntN(s.length+1))
	}
	return b.NewArray()
}

// values appends n random values.
func (d dice) values(b array.Builder, s style, nullable bool, n int) {
	for n > 0 {
		same := min(n, 1+d.IntN(s.runs))
		n -= same
		null, v := nullable && d.chance(s.nulls), d.Uint64N(s.distinct)
		for range same {
			if null {
				b.AppendNull()
				continue
			}
			appendValue(b, v, s.length)
		}
	}
}

func appendValue(b array.Builder, v uint64, length int) {
	text := fmt.Appendf(nil, "%0*x", v%uint64(length+1), v*0x9e3779b97f4a7c15)
	switch b := b.(type) {
	case *array.BooleanBuilder:
		b.Append(v%2 == 1)
	case *array.Int8Builder:
		b.Append(int8(v))
	case *array.Int16Builder:
		b.Append(int16(v))
	case *array.Int32Builder:
		b.Append(int32(v))
	case *array.Int64Builder:
		b.Append(int64(v * 3))
	case *array.Uint8Builder:
		b.Append(uint8(v))
	case *array.Uint16Builder:
		b.Append(uint16(v))
	case *array.Uint32Builder:
		b.Append(uint32(v))
	case *array.Uint64Builder:
		b.Append(v * 3)
	case *array.Float16Builder:
		b.Append(float16.FromBits(uint16(v) & 0x3fff))
	case *array.Float32Builder:
		b.Append(float32(v) / 3)
	case *array.Float64Builder:
		b.Append(float64(v) / 3)
	case *array.Date32Builder:
		b.Append(arrow.Date32(v))
	case *array.Time32Builder:
		b.Append(arrow.Time32(v % 86_400_000))
	case *array.Time64Builder:
		b.Append(arrow.Time64(v % 86_400_000_000))
	case *array.TimestampBuilder:
		b.Append(arrow.Timestamp(v))
	case *array.Decimal128Builder:
		most := decimal128.GetScaleMultiplier(int(b.Type().(*arrow.Decimal128Type).Precision))
		_, rest := decimal128.New(int64(v>>2), v*0x9e3779b97f4a7c15).Div(most)
		if v%2 == 1 {
			rest = rest.Negate()
		}
		b.Append(rest)
	case *array.StringBuilder:
		b.Append(string(text))
	case *array.BinaryBuilder:
		b.Append(text)
	case *array.FixedSizeBinaryBuilder:
		width := b.Type().(*arrow.FixedSizeBinaryType).ByteWidth
		b.Append(append(text, make([]byte, width)...)[:width])
	default:
		panic(fmt.Sprintf("no random values of %s", b.Type()))
	}
}

// codecs lists all codecs that can be decoded.
var codecs = []compress.Compression{
	compress.Codecs.Uncompressed, compress.Codecs.Snappy, compress.Codecs.Gzip, compress.Codecs.Brotli, compress.Codecs.Zstd, compress.Codecs.Lz4Raw, compress.Codecs.Lz4,
}

// properties returns random writer properties for a column, with one of the codecs.
func (d dice) properties(value arrow.DataType, codecs ...compress.Compression) (*parquet.WriterProperties, string) {
	if list, ok := value.(*arrow.ListType); ok {
		value = list.Elem()
	}
	version := pick(d, parquet.DataPageV1, parquet.DataPageV2)
	codec := pick(d, codecs...)
	dictionary, limit, page := d.chance(40), pick[int64](d, 64, 1<<20), pick[int64](d, 32, 500, 8000, 1<<20)
	encoding := pick(d, encodingsOf(value)...)
	options := []parquet.WriterProperty{
		parquet.WithDataPageVersion(version), parquet.WithCompression(codec), parquet.WithDataPageSize(page), parquet.WithBatchSize(pick[int64](d, 1, 7, 100, 1024)),
		parquet.WithDictionaryDefault(dictionary), parquet.WithDictionaryPageSizeLimit(limit), parquet.WithStoreDecimalAsInteger(d.chance(50)),
	}
	if !dictionary {
		options = append(options, parquet.WithEncoding(encoding))
	}
	about := fmt.Sprintf("page version %v of %d bytes, codec %s, dictionary %t up to %d, encoding %s", version, page, codec, dictionary, limit, encoding)
	return parquet.NewWriterProperties(options...), about
}

// encodingsOf lists the encodings besides a dictionary in which arrow-go writes a type's values.
func encodingsOf(value arrow.DataType) []parquet.Encoding {
	e := parquet.Encodings
	switch value.ID() {
	case arrow.BOOL:
		return []parquet.Encoding{e.Plain, e.RLE}
	case arrow.STRING, arrow.BINARY:
		return []parquet.Encoding{e.Plain, e.DeltaLengthByteArray, e.DeltaByteArray}
	case arrow.FIXED_SIZE_BINARY, arrow.FLOAT16, arrow.FLOAT32, arrow.FLOAT64:
		return []parquet.Encoding{e.Plain, e.ByteStreamSplit}
	case arrow.DECIMAL128: // it can be stored in three physical types
		return []parquet.Encoding{e.Plain}
	}
	return []parquet.Encoding{e.Plain, e.DeltaBinaryPacked, e.ByteStreamSplit}
}

// write writes rows of a field in row groups of at most group rows. It skips the test where arrow-go's writer fails or panics, as
// v18.8.0 does on some delta-encoded pages.
func write(t testing.TB, f arrow.Field, rows arrow.Array, group int64, properties *parquet.WriterProperties) []byte {
	t.Helper()
	s := arrow.NewSchema([]arrow.Field{f}, nil)
	rec := array.NewRecordBatch(s, []arrow.Array{rows}, int64(rows.Len()))
	defer rec.Release()
	table := array.NewTableFromRecords(s, []arrow.RecordBatch{rec})
	defer table.Release()
	defer func() {
		if p := recover(); p != nil {
			t.Skipf("arrow-go cannot write this: %v", p)
		}
	}()
	var out bytes.Buffer
	if err := pqarrow.WriteTable(table, &out, group, properties, pqarrow.DefaultWriterProps()); err != nil {
		t.Skipf("arrow-go cannot write this: %v", err)
	}
	return out.Bytes()
}
