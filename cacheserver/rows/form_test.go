// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"fmt"
	"iter"
	"math"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// integers are the types that chunks may store in fewer bytes.
var integers = []arrow.DataType{
	arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Uint32, arrow.FixedWidthTypes.Date32, arrow.FixedWidthTypes.Time32s,
	arrow.PrimitiveTypes.Int64, arrow.PrimitiveTypes.Uint64, arrow.FixedWidthTypes.Date64, arrow.FixedWidthTypes.Time64ns,
	arrow.FixedWidthTypes.Timestamp_us, arrow.FixedWidthTypes.Duration_ms,
}

// integerRange is a random range of integers of width bytes: of any number of bits, and often at the least or the greatest integer or at zero.
func (d dice) integerRange(width int) (least int64, length uint64) {
	spare := 64 - 8*width
	length = d.Uint64() >> min(spare+d.IntN(8*width+1), 63)
	if d.IntN(3) == 0 {
		length = min([]uint64{math.MaxUint8, math.MaxUint8 + 1, math.MaxUint16, math.MaxUint16 + 1, math.MaxUint32, math.MaxUint32 + 1}[d.IntN(6)], math.MaxUint64>>spare)
	}
	lowest, highest := int64(math.MinInt64)>>spare, int64(math.MaxInt64)>>spare
	switch d.IntN(4) {
	case 0:
		return lowest, length
	case 1:
		return highest - int64(length), length
	case 2:
		return -int64(length / 2), length
	}
	return 0, min(length, uint64(highest))
}

// integers is n integers of a range, as a slice of a longer array. Values in null slots are any, as some decoders leave them.
func (d dice) integers(dt arrow.DataType, n int) arrow.Array {
	width, before := dt.(arrow.FixedWidthDataType).BitWidth()/8, d.IntN(9)
	least, length := d.integerRange(width)
	nullsIn := []int{0, 0, 2, 50}[d.IntN(4)]
	values, valid := make([]byte, (before+n)*width), make([]byte, (before+n+7)/8)
	for i := range before + n {
		v := uint64(least) + []uint64{0, length, d.Uint64() % max(length, 1)}[d.IntN(3)]
		if i < before || nullsIn > 0 && d.IntN(nullsIn) == 0 {
			v = d.Uint64()
		} else {
			valid[i/8] |= 1 << (i % 8)
		}
		for b := range width {
			values[i*width+b] = byte(v >> (8 * b))
		}
	}
	whole := array.MakeFromData(raw(dt, before+n, valid, [][]byte{values}))
	return array.NewSlice(whole, int64(before), int64(before+n))
}

// integerBatch is a batch of a schema of integers, lists of integers and other columns.
func (d dice) integerBatch(t *testing.T, s *arrow.Schema, n int) arrow.RecordBatch {
	t.Helper()
	columns := slices.Clone(d.batch(t, s, n).Columns())
	for i, f := range s.Fields() {
		if isInteger(f.Type) {
			columns[i] = d.integers(f.Type, n)
		}
		list, ok := f.Type.(*arrow.ListType)
		if !ok || !isInteger(list.Elem()) {
			continue
		}
		offsets := make([]int32, 1, n+1)
		for range n {
			offsets = append(offsets, offsets[len(offsets)-1]+int32(d.IntN(2)*d.IntN(60)))
		}
		kid := d.integers(list.Elem(), int(offsets[n]))
		columns[i] = array.MakeFromData(raw(f.Type, n, nil, [][]byte{int32s(offsets...)}, kid.Data()))
	}
	return array.NewRecordBatch(s, columns, int64(n))
}

// integerSchema has integers alone or in strips, lists of them, and other columns.
func (d dice) integerSchema() *arrow.Schema {
	var fields []arrow.Field
	for i := range 1 + d.IntN(12) {
		dt := integers[d.IntN(len(integers))]
		switch d.IntN(4) {
		case 0:
			dt = list(dt)
		case 1:
			dt = []arrow.DataType{arrow.BinaryTypes.String, arrow.PrimitiveTypes.Float64, arrow.PrimitiveTypes.Int8, arrow.FixedSizeListOf(3, dt), list(list(dt))}[d.IntN(5)]
		}
		fields = append(fields, nullable(fmt.Sprint("c", i), dt))
	}
	return arrow.NewSchema(fields, nil)
}

// content is the bytes of a message, which it releases.
func content(m Message) []byte {
	all := bytes.Clone(m.Header)
	for _, b := range m.Body {
		all = append(all, b...)
	}
	m.Release()
	return all
}

// TestNarrowEqualsPlain compares messages of chunks with integers in fewer bytes, byte by byte, with those of chunks that have them as
// they are.
func TestNarrowEqualsPlain(t *testing.T) {
	fewer := 0
	seeds := seedtest.Seeds(t, seedtest.Cases[uint64](20, 60))
	for _, seed := range seeds {
		d := newDice(t, seed)
		s := d.integerSchema()
		var batches []arrow.RecordBatch
		for range 1 + d.IntN(4) {
			batches = append(batches, d.integerBatch(t, s, d.IntN(500)))
		}
		target := 1 << (9 + d.IntN(10))
		st, plain := load(t, s, target, batches...), loadPlain(t, s, target, batches...)
		if st.rows.Bytes() < plain.rows.Bytes() {
			fewer++
		}
		n := st.rows.Len()
		for range 4 {
			p := d.projection(t, st.layout)
			q, err := plain.layout.Project(p.columns)
			if err != nil {
				t.Fatal(err)
			}
			lo := d.Int64N(n + 1)
			hi := lo + d.Int64N(n-lo+1)
			want := slices.Collect(messagesOf(t, plain, q, lo, hi))
			for i, got := range slices.Collect(messagesOf(t, st, p, lo, hi)) {
				if !bytes.Equal(got, want[i]) {
					t.Fatalf("seed %d: schema %v: message %d of rows [%d, %d) differs", seed, s, i, lo, hi)
				}
			}
			rows := d.picks(n)
			for row := lo; row < hi; row++ { // a run, possibly longer than a block
				rows = append(rows, row)
			}
			limit := 1 << (8 + d.IntN(12))
			runs, same := runsOf(rows...), runsOf(rows...)
			for left := len(rows); left > 0; {
				var a, b Message
				if a, runs, err = st.rows.Gather(p, runs, left, limit); err != nil {
					t.Fatal(err)
				}
				if b, same, err = plain.rows.Gather(q, same, left, limit); err != nil {
					t.Fatal(err)
				}
				left -= a.Rows
				if !bytes.Equal(content(a), content(b)) {
					t.Fatalf("seed %d: schema %v: a message of rows %d differs", seed, s, rows)
				}
			}
		}
	}
	if fewer < len(seeds)*2/3 {
		t.Errorf("in %d of %d tables chunks take fewer bytes", fewer, len(seeds))
	}
}

// loadPlain is load without fewer bytes for integers.
func loadPlain(t *testing.T, s *arrow.Schema, target int, batches ...arrow.RecordBatch) store {
	t.Helper()
	l, err := NewLayout(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range l.nodes {
		n.integer = false
	}
	st := store{budget: offheap.NewBudget(1 << 40), layout: l}
	st.arena = offheap.NewArena(st.budget)
	b := NewBuilder(l, st.arena, target)
	defer b.Close()
	for _, batch := range batches {
		if err := b.Append(batch, nil); err != nil {
			t.Fatal(err)
		}
	}
	st.finish(t, b)
	return st
}

// messagesOf yields the bytes of the messages of rows [lo, hi).
func messagesOf(t *testing.T, st store, p *Projection, lo, hi int64) iter.Seq[[]byte] {
	t.Helper()
	return func(yield func([]byte) bool) {
		for m, err := range st.rows.Range(p, lo, hi) {
			if err != nil {
				t.Fatal(err)
			}
			if !yield(content(m)) {
				return
			}
		}
	}
}

// TestForms checks which integers take how many bytes in memory, and that they take as many as before in messages.
func TestForms(t *testing.T) {
	for _, c := range []struct {
		name  string
		dt    arrow.DataType
		least int64
		most  uint64 // the difference from least
		want  form
	}{
		{"bytes", arrow.PrimitiveTypes.Int32, 0, 255, form{base: 0, width: 1, signed: 2, unsigned: 1, stride: 1}},
		{"tokens", arrow.PrimitiveTypes.Int32, 0, 65_535, form{base: 0, width: 2, signed: 4, unsigned: 2, stride: 2}},
		{"tokens and -1", arrow.PrimitiveTypes.Int32, -1, 50_000, form{base: -1, width: 2, signed: 4, unsigned: 8, stride: 2}},
		{"one token more", arrow.PrimitiveTypes.Int32, 0, 65_536, form{base: 0, width: 4, signed: 8, unsigned: 8, stride: 4}},
		{"the least int32", arrow.PrimitiveTypes.Int32, math.MinInt32, 65_535, form{base: math.MinInt32, width: 2, signed: 4, unsigned: 8, stride: 2}},
		{"every int32", arrow.PrimitiveTypes.Int32, math.MinInt32, math.MaxUint32, form{base: 0, width: 4, signed: 8, unsigned: 8, stride: 4}},
		{"a constant", arrow.PrimitiveTypes.Int64, 1 << 60, 0, form{base: 1 << 60, width: 1, signed: 8, unsigned: 8, stride: 1}},
		{"the least int64", arrow.PrimitiveTypes.Int64, math.MinInt64, math.MaxUint32, form{base: math.MinInt64, width: 4, signed: 8, unsigned: 8, stride: 4}},
		{"33 bits", arrow.PrimitiveTypes.Int64, 0, math.MaxUint32 + 1, form{base: 0, width: 8, signed: 8, unsigned: 8, stride: 8}},
		{"an hour", arrow.FixedWidthTypes.Timestamp_us, 1_700_000_000_000_000, 3_600_000_000, form{base: 1_700_000_000_000_000, width: 4, signed: 8, unsigned: 8, stride: 4}},
		{"the greatest uint64", arrow.PrimitiveTypes.Uint64, -70_000, 60_000, form{base: -70_000, width: 2, signed: 4, unsigned: 8, stride: 2}},
		{"every int64", arrow.PrimitiveTypes.Int64, math.MinInt64, math.MaxUint64, form{base: 0, width: 8, signed: 8, unsigned: 8, stride: 8}},
	} {
		width := c.dt.(arrow.FixedWidthDataType).BitWidth() / 8
		values := make([]byte, 0, 300*width)
		for i := range uint64(300) {
			v := uint64(c.least) + c.most/299*i
			if i == 299 {
				v = uint64(c.least) + c.most
			}
			for b := range width {
				values = append(values, byte(v>>(8*b)))
			}
		}
		batch := single(raw(c.dt, 300, nil, [][]byte{values}))
		st := load(t, batch.Schema(), 0, batch)
		if got := st.sealed.Chunks[0].forms[0]; got != c.want {
			t.Errorf("%s: form %+v, want %+v", c.name, got, c.want)
		}
		if got, want := st.rows.Bytes(), padded(300*int64(c.want.width)); got != want {
			t.Errorf("%s: %d bytes in memory, want %d", c.name, got, want)
		}
		if got, want := st.rows.ColumnBytes()[0], padded(300*int64(width)); got != want {
			t.Errorf("%s: %d bytes in messages, want %d", c.name, got, want)
		}
	}
}

// TestFormsIgnoreNulls checks that a value in a null slot changes neither the form nor the hash.
func TestFormsIgnoreNulls(t *testing.T) {
	var hashes [][16]byte
	for _, below := range []int32{0, 7, math.MaxInt32, math.MinInt32} {
		batch := single(raw(arrow.PrimitiveTypes.Int32, 3, []byte{0b101}, [][]byte{int32s(-5, below, 90)}))
		st := load(t, batch.Schema(), 0, batch)
		if got, want := st.sealed.Chunks[0].forms[0], (form{base: -5, width: 1, signed: 1, unsigned: 8, stride: 1}); got != want {
			t.Errorf("%d in the null slot: form %+v, want %+v", below, got, want)
		}
		hashes = append(hashes, st.sealed.Hash)
	}
	if n := len(slices.Compact(hashes)); n != 1 {
		t.Errorf("%d hashes of the same rows", n)
	}
}

// TestWideValues checks values whose width is more than a form can say.
func TestWideValues(t *testing.T) {
	width := math.MaxUint16 + 2
	values := bytes.Repeat([]byte("datacache"), 3*width/9+1)[:3*width]
	batch := single(raw(fixed(width), 3, nil, [][]byte{values}))
	st := load(t, batch.Schema(), 0, batch)
	equalBatches(t, "rows", st.readRows(t, st.layout.All(), []int64{2, 0, 1}, 1<<20), take(t, batch, []int64{2, 0, 1}))
	if got, want := st.rows.ColumnBytes()[0], padded(int64(len(values))); got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
}
