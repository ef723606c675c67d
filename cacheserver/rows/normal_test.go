// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// raw makes an array of its parts; the caller chooses the values in null slots.
func raw(dt arrow.DataType, length int, valid []byte, buffers [][]byte, kids ...arrow.ArrayData) arrow.ArrayData {
	wrapped := make([]*memory.Buffer, 0, 1+len(buffers))
	var bitmap *memory.Buffer
	nulls := 0
	if valid != nil {
		bitmap, nulls = memory.NewBufferBytes(valid), array.UnknownNullCount
	}
	wrapped = append(wrapped, bitmap)
	for _, b := range buffers {
		wrapped = append(wrapped, memory.NewBufferBytes(b))
	}
	return array.NewData(dt, length, wrapped, kids, nulls, 0)
}

func int32s(v ...int32) []byte { return arrow.Int32Traits.CastToBytes(v) }

func single(d arrow.ArrayData) arrow.RecordBatch {
	s := arrow.NewSchema([]arrow.Field{nullable("v", d.DataType())}, nil)
	return array.NewRecordBatch(s, []arrow.Array{array.MakeFromData(d)}, int64(d.Len()))
}

// Each case has the same rows twice; both must give the same bytes and the same hash.
func TestBelowNulls(t *testing.T) {
	str, i32 := arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int32
	pair := arrow.StructOf(nullable("a", i32), nullable("s", str))
	duo := arrow.FixedSizeListOf(2, i32)
	ints := func(valid []byte, v ...int32) arrow.ArrayData { return raw(i32, len(v), valid, [][]byte{int32s(v...)}) }
	strs := func(valid []byte, data string, offsets ...int32) arrow.ArrayData {
		return raw(str, len(offsets)-1, valid, [][]byte{int32s(offsets...), []byte(data)})
	}
	for _, c := range []struct {
		name        string
		clean, dirt arrow.ArrayData
	}{
		{"value", ints([]byte{0b101}, 1, 0, 3), ints([]byte{0b11111101}, 1, 77, 3)},
		{"all valid with a bitmap", ints(nil, 1, 2, 3), ints([]byte{0b111}, 1, 2, 3)},
		{
			"boolean",
			raw(arrow.FixedWidthTypes.Boolean, 3, []byte{0b101}, [][]byte{{0b001}}),
			raw(arrow.FixedWidthTypes.Boolean, 3, []byte{0b101}, [][]byte{{0b11111011}}),
		},
		{"string", strs([]byte{0b101}, "ab", 0, 1, 1, 2), strs([]byte{0b101}, "axyb", 0, 1, 3, 4)},
		{"string with a gap before", strs(nil, "ab", 0, 1, 2), strs(nil, "zzab", 2, 3, 4)},
		{
			"list",
			raw(list(i32), 3, []byte{0b101}, [][]byte{int32s(0, 1, 1, 2)}, ints(nil, 1, 2)),
			raw(list(i32), 3, []byte{0b101}, [][]byte{int32s(0, 1, 3, 4)}, ints(nil, 1, 8, 9, 2)),
		},
		{
			"struct",
			raw(pair, 3, []byte{0b101}, nil, ints([]byte{0b101}, 1, 0, 3), strs([]byte{0b101}, "ab", 0, 1, 1, 2)),
			raw(pair, 3, []byte{0b101}, nil, ints(nil, 1, 5, 3), strs(nil, "aQb", 0, 1, 2, 3)),
		},
		{
			"fixed-size list",
			raw(duo, 2, []byte{0b10}, nil, ints([]byte{0b1100}, 0, 0, 3, 4)),
			raw(duo, 2, []byte{0b10}, nil, ints(nil, 1, 2, 3, 4)),
		},
		{
			"list of struct of list",
			raw(list(pair), 2, nil, [][]byte{int32s(0, 1, 2)},
				raw(pair, 2, []byte{0b01}, nil, ints([]byte{0b01}, 1, 0), strs([]byte{0b01}, "a", 0, 1, 1))),
			raw(list(pair), 2, nil, [][]byte{int32s(1, 2, 3)},
				raw(pair, 3, []byte{0b010}, nil, ints([]byte{0b110}, 7, 1, 8), strs(nil, "xaz", 0, 1, 2, 3))),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			clean, dirt := load(t, single(c.clean).Schema(), 0, single(c.clean)), load(t, single(c.dirt).Schema(), 0, single(c.dirt))
			equalBatches(t, "rows", dirt.readRange(t, dirt.layout.All(), 0, dirt.rows.Len()), single(c.clean))
			if string(clean.sealed.Chunks[0].body) != string(dirt.sealed.Chunks[0].body) {
				t.Errorf("bodies differ:\n%v\n%v", clean.sealed.Chunks[0].body, dirt.sealed.Chunks[0].body)
			}
			if clean.sealed.Hash != dirt.sealed.Hash {
				t.Errorf("hashes differ: %x, %x", clean.sealed.Hash, dirt.sealed.Hash)
			}
		})
	}
}

func TestHash(t *testing.T) {
	two := arrow.NewSchema([]arrow.Field{nullable("a", arrow.PrimitiveTypes.Int32), nullable("b", arrow.BinaryTypes.String)}, nil)
	base := `[{"a":1,"b":"x"},{"a":2,"b":"y"},{"a":0,"b":""}]`
	hash := func(batches ...arrow.RecordBatch) [16]byte { return load(t, two, 0, batches...).sealed.Hash }
	whole := batchFromJSON(t, two, base)
	want := hash(whole)
	if got := hash(concat(t, two, []arrow.RecordBatch{whole, whole}).NewSlice(3, 6)); got != want {
		t.Errorf("the same rows as a slice: %x, want %x", got, want)
	}
	for name, rows := range map[string]string{
		"a bit of a number":  `[{"a":1,"b":"x"},{"a":3,"b":"y"},{"a":0,"b":""}]`,
		"a bit of a string":  `[{"a":1,"b":"x"},{"a":2,"b":"x"},{"a":0,"b":""}]`,
		"null for zero":      `[{"a":1,"b":"x"},{"a":2,"b":"y"},{"a":null,"b":""}]`,
		"null for empty":     `[{"a":1,"b":"x"},{"a":2,"b":"y"},{"a":0,"b":null}]`,
		"zero byte appended": `[{"a":1,"b":"x"},{"a":2,"b":"y"},{"a":0,"b":"\u0000"}]`,
		"moved boundary":     `[{"a":1,"b":"xy"},{"a":2,"b":""},{"a":0,"b":""}]`,
		"one row fewer":      `[{"a":1,"b":"x"},{"a":2,"b":"y"}]`,
		"one row more":       `[{"a":1,"b":"x"},{"a":2,"b":"y"},{"a":0,"b":""},{"a":0,"b":""}]`,
		"other order":        `[{"a":2,"b":"y"},{"a":1,"b":"x"},{"a":0,"b":""}]`,
		"no rows":            `[]`,
	} {
		if got := hash(batchFromJSON(t, two, rows)); got == want {
			t.Errorf("%s: the same hash", name)
		}
	}
	nothing := arrow.NewSchema([]arrow.Field{nullable("n", arrow.Null)}, nil)
	three, four := `[{},{},{}]`, `[{},{},{},{}]`
	if load(t, nothing, 0, batchFromJSON(t, nothing, three)).sealed.Hash == load(t, nothing, 0, batchFromJSON(t, nothing, four)).sealed.Hash {
		t.Error("3 and 4 rows without a body have the same hash")
	}
}

// TestDeterministic checks that equal random batches yield equal bytes, whatever memory they are in.
func TestDeterministic(t *testing.T) {
	for _, seed := range seedtest.Seeds(t, 20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			d := newDice(t, seed)
			s := d.schema()
			var batches, copies []arrow.RecordBatch
			for range 6 {
				b := d.batch(t, s, d.IntN(200))
				batches = append(batches, b)
				copies = append(copies, concat(t, s, []arrow.RecordBatch{b, b}).NewSlice(b.NumRows(), 2*b.NumRows()))
			}
			one, two := load(t, s, 2000, batches...), load(t, s, 2000, copies...)
			if one.sealed.Hash != two.sealed.Hash {
				t.Errorf("schema %v: hashes differ", s)
			}
		})
	}
}

// TestBelowRandomNulls overlays random rows with nulls at every level: the values must be those of the arrays, and the result must be
// normalized already.
func TestBelowRandomNulls(t *testing.T) {
	for _, seed := range seedtest.Seeds(t, 60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			d := newDice(t, seed)
			s := d.schema()
			b := d.batch(t, s, 1+d.IntN(120))
			columns := make([]arrow.Array, b.NumCols())
			for i, c := range b.Columns() {
				columns[i] = array.MakeFromData(d.overlay(c.Data(), true))
			}
			b = array.NewRecordBatch(s, columns, b.NumRows())
			st := load(t, s, 0, b)
			got := st.readRange(t, st.layout.All(), 0, b.NumRows())
			for i := range columns {
				if got, want := got.Column(i).String(), b.Column(i).String(); got != want {
					t.Fatalf("column %s:\n got %.1000s\nwant %.1000s", s.Field(i).Type, got, want)
				}
			}
			if again := load(t, s, 0, got); again.sealed.Hash != st.sealed.Hash {
				t.Error("loading what came out gives another hash")
			}
		})
	}
}

// overlay returns d with runs of its slots and its children's slots set to null, except for keys of maps.
func (d dice) overlay(data arrow.ArrayData, may bool) arrow.ArrayData {
	dt := data.DataType()
	kids := make([]arrow.ArrayData, len(data.Children()))
	for i, kid := range data.Children() {
		kids[i] = d.overlay(kid, may && dt.ID() != arrow.MAP && dt.ID() != arrow.EXTENSION)
	}
	buffers := append([]*memory.Buffer{}, data.Buffers()...)
	if !may || dt.ID() == arrow.NULL || d.IntN(3) == 0 {
		return array.NewData(dt, data.Len(), buffers, kids, data.NullN(), data.Offset())
	}
	bits := make([]byte, (data.Offset()+data.Len()+7)/8+1)
	for i := range bits {
		bits[i] = 0xFF
		if old := buffers[0]; old != nil && old.Len() > i {
			bits[i] = old.Bytes()[i]
		}
		if d.IntN(4) == 0 {
			bits[i] &= byte(d.IntN(256))
		}
	}
	buffers[0] = memory.NewBufferBytes(bits)
	return array.NewData(dt, data.Len(), buffers, kids, array.UnknownNullCount, data.Offset())
}
