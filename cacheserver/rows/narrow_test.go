// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// TestNarrow compares messages with integers in a shorter type, value by value, with those in the schema's.
func TestNarrow(t *testing.T) {
	narrowed := 0
	seeds := seedtest.Seeds(t, seedtest.Cases[uint64](20, 80))
	for _, seed := range seeds {
		d := newDice(t, seed)
		s := d.integerSchema()
		var batches []arrow.RecordBatch
		for range 1 + d.IntN(4) {
			batches = append(batches, d.integerBatch(t, s, d.IntN(500)))
		}
		st := load(t, s, 1<<(9+d.IntN(10)), batches...)
		n := st.rows.Len()
		for range 4 {
			p := d.projection(t, st.layout)
			codes := d.codes(st.rows, p)
			q, err := st.rows.Narrow(p, codes)
			if err != nil {
				t.Fatal(err)
			}
			narrowed += len(q.narrow)
			lo := d.Int64N(n + 1)
			hi := lo + d.Int64N(n-lo+1)
			what := fmt.Sprintf("seed %d, codes %s", seed, codes)
			equalBatches(t, what, widened(st.readRange(t, q, lo, hi), p.schema), st.readRange(t, p, lo, hi))
			equalBatches(t, what, widened(st.records(t, q, lo, hi), p.schema), st.readRange(t, p, lo, hi))
			rows := d.picks(n)
			for row := lo; row < hi; row++ { // a run, possibly longer than a block
				rows = append(rows, row)
			}
			limit := 1 << (8 + d.IntN(12))
			equalBatches(t, what, widened(st.readRows(t, q, rows, limit), p.schema), st.readRows(t, p, rows, limit))
		}
	}
	if narrowed < len(seeds) {
		t.Errorf("%d columns are narrower", narrowed)
	}
}

// codes is for each column of a projection a random code of those that its values fit in.
func (d dice) codes(r *Rows, p *Projection) string {
	var codes []byte
	for _, c := range p.columns {
		fit := []byte{Declared}
		if n := p.layout.integersOf(c); n != nil {
			for _, code := range []byte(signedCodes + unsignedCodes) {
				if fits(r.fits[c], code) && typeOf(code).(arrow.FixedWidthDataType).BitWidth() <= 8*n.width {
					fit = append(fit, code)
				}
			}
		}
		if d.IntN(5) > 0 {
			fit = fit[len(fit)/2:]
		}
		codes = append(codes, fit[d.IntN(len(fit))])
	}
	return string(codes)
}

// widened is a batch with its integers in the types of a schema.
func widened(b arrow.RecordBatch, s *arrow.Schema) arrow.RecordBatch {
	var columns []arrow.Array
	for i, c := range b.Columns() {
		columns = append(columns, array.MakeFromData(widenedData(c.Data(), s.Field(i).Type)))
	}
	return array.NewRecordBatch(s, columns, b.NumRows())
}

func widenedData(d arrow.ArrayData, dt arrow.DataType) arrow.ArrayData {
	if arrow.TypeEqual(d.DataType(), dt) {
		return d
	}
	if list, ok := dt.(arrow.ListLikeType); ok {
		return array.NewData(dt, d.Len(), d.Buffers(), []arrow.ArrayData{widenedData(d.Children()[0], list.Elem())}, d.NullN(), d.Offset())
	}
	from, to := d.DataType().(arrow.FixedWidthDataType).BitWidth()/8, dt.(arrow.FixedWidthDataType).BitWidth()/8
	values := d.Buffers()[1].Bytes()
	var out []byte
	for i := range len(values) / from {
		v := append([]byte(nil), values[i*from:(i+1)*from]...)
		fill := byte(0)
		if arrow.IsSignedInteger(d.DataType().ID()) && v[from-1] >= 128 {
			fill = 255
		}
		for len(v) < 8 {
			v = append(v, fill)
		}
		out = append(out, v[:to]...)
	}
	return array.NewData(dt, d.Len(), []*memory.Buffer{d.Buffers()[0], memory.NewBufferBytes(out)}, nil, d.NullN(), d.Offset())
}

// TestCodes has the shortest types of integers in several parts of a table.
func TestCodes(t *testing.T) {
	i32, i64 := arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64
	u32, u64 := arrow.PrimitiveTypes.Uint32, arrow.PrimitiveTypes.Uint64
	for _, c := range []struct {
		name  string
		dt    arrow.DataType
		parts [][]int64
		want  string
	}{
		{"nothing", i32, [][]int64{{}}, "C"},
		{"bytes", i32, [][]int64{{0, 255}}, "C"},
		{"signed bytes", i64, [][]int64{{-128}, {127}}, "c"},
		{"signed and unsigned bytes", i64, [][]int64{{-1}, {128}}, "s"},
		{"tokens", i32, [][]int64{{0, 65_535}, {3}}, "S"},
		{"tokens and -100", i32, [][]int64{{-100}, {32_767}}, "s"},
		{"one token more", i32, [][]int64{{0, 65_535}, {65_536}}, "-"},
		{"a token less than none", i32, [][]int64{{0, 65_535}, {-1}}, "-"},
		{"many tokens", i64, [][]int64{{0, 65_535}, {65_536}}, "I"},
		{"32 bits", i64, [][]int64{{0}, {1<<32 - 1}}, "I"},
		{"32 bits with a sign", i64, [][]int64{{-1 << 31}, {1<<31 - 1}}, "i"},
		{"33 bits", i64, [][]int64{{-1}, {1 << 31}}, "-"},
		{"far away", i64, [][]int64{{1 << 60}}, "-"},
		{"unsigned", u32, [][]int64{{200}}, "C"},
		{"the greatest uint32", u32, [][]int64{{1<<32 - 1}}, "-"},
		{"the greatest uint64", u64, [][]int64{{-1}}, "-"},
		{"32 of 64 bits", u64, [][]int64{{1<<32 - 1}}, "I"},
		{"days", arrow.FixedWidthTypes.Date32, [][]int64{{1}}, "-"},
		{"short already", arrow.PrimitiveTypes.Int16, [][]int64{{1}}, "-"},
	} {
		for _, in := range []func(arrow.DataType) arrow.DataType{
			func(dt arrow.DataType) arrow.DataType { return dt },
			func(dt arrow.DataType) arrow.DataType { return list(dt) },
			func(dt arrow.DataType) arrow.DataType { return arrow.LargeListOf(arrow.FixedSizeListOf(1, dt)) },
		} {
			var parts [][]byte
			var s *arrow.Schema
			for _, values := range c.parts {
				b := single(inLists(integerArray(c.dt, values), in(c.dt)))
				s = b.Schema()
				parts = append(parts, load(t, s, 0, b).rows.Fits())
			}
			if got := Codes(s, parts...); got != c.want {
				t.Errorf("%s as %s: %q, want %q", c.name, in(c.dt), got, c.want)
			}
		}
	}
}

func integerArray(dt arrow.DataType, values []int64) arrow.ArrayData {
	var data []byte
	for _, v := range values {
		data = append(data, binary.LittleEndian.AppendUint64(nil, uint64(v))[:dt.(arrow.FixedWidthDataType).BitWidth()/8]...)
	}
	return raw(dt, len(values), nil, [][]byte{data})
}

// inLists is values in lists of one each.
func inLists(values arrow.ArrayData, dt arrow.DataType) arrow.ArrayData {
	n := values.Len()
	offsets := make([]int32, n+1)
	large := make([]byte, 8*(n+1))
	for i := range offsets {
		offsets[i] = int32(i)
		binary.LittleEndian.PutUint64(large[8*i:], uint64(i))
	}
	switch t := dt.(type) {
	case *arrow.ListType:
		return raw(dt, n, nil, [][]byte{int32s(offsets...)}, inLists(values, t.Elem()))
	case *arrow.LargeListType:
		return raw(dt, n, nil, [][]byte{large}, inLists(values, t.Elem()))
	case *arrow.FixedSizeListType:
		return raw(dt, n, nil, nil, inLists(values, t.Elem()))
	}
	return values
}

// TestNarrowSigned has chunks that store integers in as many bytes as messages have, but with a base.
func TestNarrowSigned(t *testing.T) {
	values := make([]int64, 20_000)
	for i := range values {
		values[i] = int64(i%200 - 100)
	}
	small := array.MakeFromData(integerArray(arrow.PrimitiveTypes.Int64, values))
	lists := array.MakeFromData(inLists(integerArray(arrow.PrimitiveTypes.Int32, values), list(arrow.PrimitiveTypes.Int32)))
	alone := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{nullable("lists", lists.DataType())}, nil), []arrow.Array{lists}, 20_000)
	strip := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{nullable("a", small.DataType()), nullable("b", small.DataType())}, nil), []arrow.Array{small, small}, 20_000)
	for codes, b := range map[string]arrow.RecordBatch{"c": alone, "cs": strip} {
		st := load(t, b.Schema(), 0, b)
		p := st.layout.All()
		q, err := st.rows.Narrow(p, codes)
		if err != nil {
			t.Fatal(err)
		}
		equalBatches(t, codes, widened(st.readRange(t, q, 1, 19_000), p.schema), st.readRange(t, p, 1, 19_000))
		rows := []int64{7, 19_999, 8, 0}
		equalBatches(t, codes, widened(st.readRows(t, q, rows, 1<<20), p.schema), st.readRows(t, p, rows, 1<<20))
	}
}

func TestNarrowRefuses(t *testing.T) {
	b := single(raw(arrow.PrimitiveTypes.Int32, 2, nil, [][]byte{int32s(-1, 70_000)}))
	st := load(t, b.Schema(), 0, b)
	for codes, want := range map[string]string{"": "0 types for 1 columns", "CC": "2 types", "C": "don't fit", "s": "don't fit", "I": "don't fit", "x": "don't fit"} {
		if _, err := st.rows.Narrow(st.layout.All(), codes); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want one that says %q", codes, err, want)
		}
	}
	texts := single(raw(arrow.BinaryTypes.String, 1, nil, [][]byte{int32s(0, 1), []byte("a")}))
	if st := load(t, texts.Schema(), 0, texts); st.rows.Fits()[0] != 0 {
		t.Error("a text fits in integers")
	}
}

// TestNarrowIsNotCopied checks that messages refer to integers that chunks store as messages have them.
func TestNarrowIsNotCopied(t *testing.T) {
	b := single(integerArray(arrow.PrimitiveTypes.Int32, make([]int64, 100_000)))
	st := load(t, b.Schema(), 0, b)
	for codes, refers := range map[string]bool{"-": false, "C": true, "S": false} {
		p, err := st.rows.Narrow(st.layout.All(), codes)
		if err != nil {
			t.Fatal(err)
		}
		for m, err := range st.rows.Range(p, 0, 50_000) {
			if err != nil {
				t.Fatal(err)
			}
			if got := m.lease.buf == nil; got != refers {
				t.Errorf("%q: refers to the chunk: %t, want %t", codes, got, refers)
			}
			m.Release()
		}
	}
}
