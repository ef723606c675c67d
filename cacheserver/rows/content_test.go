// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// contentOf is the hash of the rows of batches.
func contentOf(l *Layout, batches ...arrow.RecordBatch) [16]byte {
	c := l.NewContent()
	for _, b := range batches {
		c.Add(b)
	}
	return c.Sum()
}

// FuzzContent checks that the hash of random rows depends neither on how they are cut into batches nor on what is in null slots, and that it
// tells different rows apart.
func FuzzContent(f *testing.F) {
	for seed := range uint64(50) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		d := newDice(t, seed)
		s := d.schema()
		st := load(t, s, 1<<12, d.batch(t, s, 1+d.IntN(300)), d.batch(t, s, d.IntN(300)))
		all := st.readRange(t, st.layout.All(), 0, st.rows.Len())
		want := contentOf(st.layout, all)
		var pieces []arrow.RecordBatch
		for lo := int64(0); lo < all.NumRows(); {
			hi := lo + 1 + d.Int64N(all.NumRows()-lo)
			pieces = append(pieces, all.NewSlice(lo, hi))
			lo = hi
		}
		if got := contentOf(st.layout, pieces...); got != want {
			t.Errorf("cut into %d batches: %x, want %x", len(pieces), got, want)
		}
		rows := make([]int64, all.NumRows())
		for i := range rows {
			rows[i] = int64(i)
		}
		slices.Reverse(rows)
		reversed := take(t, all, rows)
		if same := array.RecordEqual(all, reversed); same != (contentOf(st.layout, reversed) == want) {
			t.Errorf("reversed, rows are equal: %v, but not the hashes", same)
		}
		if all.NumRows() > 1 && contentOf(st.layout, all.NewSlice(1, all.NumRows())) == want {
			t.Error("without the first row the hash is the same")
		}
	})
}

func TestContentBelowNulls(t *testing.T) {
	str := arrow.BinaryTypes.String
	clean := single(raw(str, 3, []byte{0b101}, [][]byte{int32s(0, 1, 1, 2), []byte("ab")}))
	dirty := single(raw(str, 3, []byte{0b101}, [][]byte{int32s(0, 1, 3, 4), []byte("axyb")}))
	l, err := NewLayout(clean.Schema())
	if err != nil {
		t.Fatal(err)
	}
	if contentOf(l, clean) != contentOf(l, dirty) {
		t.Error("what is in a null slot matters")
	}
}

// foreign returns the nodes and buffers of a batch, none of whose arrays are sliced.
func foreign(t testing.TB, batch arrow.RecordBatch) Foreign {
	t.Helper()
	f := Foreign{Rows: batch.NumRows()}
	var add func(d arrow.ArrayData)
	add = func(d arrow.ArrayData) {
		f.Lengths, f.Nulls = append(f.Lengths, int64(d.Len())), append(f.Nulls, int64(d.NullN()))
		if d.DataType().ID() != arrow.NULL {
			for _, b := range d.Buffers() {
				var bytes []byte
				if b != nil {
					bytes = b.Bytes()
				}
				f.Buffers = append(f.Buffers, bytes)
			}
		}
		for _, kid := range d.Children() {
			add(kid)
		}
	}
	for _, c := range batch.Columns() {
		add(c.Data())
	}
	return f
}

func TestForeign(t *testing.T) {
	i32, str := arrow.PrimitiveTypes.Int32, arrow.BinaryTypes.String
	s := arrow.NewSchema([]arrow.Field{
		nullable("n", i32), nullable("s", str), nullable("l", arrow.ListOf(i32)), nullable("f", arrow.FixedSizeListOf(2, i32)),
		nullable("p", arrow.StructOf(nullable("a", str))), nullable("z", arrow.Null), nullable("b", arrow.FixedWidthTypes.Boolean),
	}, nil)
	l, err := NewLayout(s)
	if err != nil {
		t.Fatal(err)
	}
	batch := batchFromJSON(t, s, `[{"n":1,"s":"x","l":[1,2],"f":[1,2],"p":{"a":"y"},"b":true},{"n":null,"s":"zz","l":[3],"f":[3,4],"p":null,"b":null}]`)
	got, err := l.Batch(foreign(t, batch))
	if err != nil {
		t.Fatal(err)
	}
	equalBatches(t, "a batch", got, batch)
	for name, damage := range map[string]func(*Foreign){
		"too many rows":        func(f *Foreign) { f.Rows = 1 << 40; f.Lengths[0] = 1 << 40 },
		"negative rows":        func(f *Foreign) { f.Rows = -1 },
		"a node less":          func(f *Foreign) { f.Lengths = f.Lengths[1:] },
		"a buffer less":        func(f *Foreign) { f.Buffers = f.Buffers[1:] },
		"a column of 3":        func(f *Foreign) { f.Lengths[0] = 3 },
		"negative length":      func(f *Foreign) { f.Lengths[3] = -1 },
		"nulls without bitmap": func(f *Foreign) { f.Buffers[2] = nil; f.Nulls[1] = 1 },
		"short values":         func(f *Foreign) { f.Buffers[1] = f.Buffers[1][:4] },
		"short bitmap":         func(f *Foreign) { f.Lengths[3] = 100 },
		"offsets fall":         func(f *Foreign) { f.Buffers[3] = int32s(0, 3, 1) },
		"offsets begin below":  func(f *Foreign) { f.Buffers[3] = int32s(-1, 0, 1) },
		"offsets pass the end": func(f *Foreign) { f.Buffers[3] = int32s(0, 1, 1<<30) },
		"list past its child":  func(f *Foreign) { f.Buffers[6] = int32s(0, 2, 4) },
		"short fixed list":     func(f *Foreign) { f.Lengths[5] = 3 },
		"child of unused list": func(f *Foreign) { f.Buffers[6] = int32s(0, 0, 0); f.Lengths[3] = 1 << 20 },
	} {
		f := foreign(t, batch)
		damage(&f)
		if got, err := l.Batch(f); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}
