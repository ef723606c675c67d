// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"golang.org/x/sys/unix"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

func TestLayoutRefuses(t *testing.T) {
	for name, dt := range map[string]arrow.DataType{
		"string_view": arrow.BinaryTypes.StringView,
		"list_view":   arrow.ListViewOf(arrow.PrimitiveTypes.Int8),
		"union":       arrow.SparseUnionOf([]arrow.Field{nullable("x", arrow.Null)}, []arrow.UnionTypeCode{0}),
		"run_end":     arrow.RunEndEncodedOf(arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int8),
		"deep":        list(arrow.StructOf(nullable("x", arrow.BinaryTypes.BinaryView))),
	} {
		_, err := NewLayout(arrow.NewSchema([]arrow.Field{nullable("ok", arrow.Null), nullable(name, dt)}, nil))
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v doesn't name the field", name, err)
		}
	}
}

func TestProject(t *testing.T) {
	meta := arrow.NewMetadata([]string{"k"}, []string{"v"})
	s := arrow.NewSchema([]arrow.Field{
		{Name: "a", Type: extensions.NewUUIDType()}, nullable("b", list(arrow.PrimitiveTypes.Int32)), nullable("c", arrow.BinaryTypes.String),
	}, &meta)
	l, err := NewLayout(s)
	if err != nil {
		t.Fatal(err)
	}
	if !l.All().Schema().Equal(s) || !l.Schema().Equal(s) {
		t.Errorf("schema %v, want %v", l.All().Schema(), s)
	}
	p, err := l.Project([]int{2, 0})
	if err != nil {
		t.Fatal(err)
	}
	if want := arrow.NewSchema([]arrow.Field{s.Field(2), s.Field(0)}, &meta); !p.Schema().Equal(want) {
		t.Errorf("schema %v, want %v", p.Schema(), want)
	}
	for _, columns := range [][]int{{3}, {6}, {-1}, {0, 1, 0}, {4, 4}} { // 3: column a has no lengths
		if _, err := l.Project(columns); err == nil {
			t.Errorf("columns %d are not refused", columns)
		}
	}
}

// TestLongValuesAreNotCopied checks that messages refer to long values in the arena instead of copying them, for rows of one chunk or
// of several, with Range and with Gather.
func TestLongValuesAreNotCopied(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{
		nullable("a", arrow.BinaryTypes.Binary), nullable("n", arrow.PrimitiveTypes.Int8), nullable("b", arrow.BinaryTypes.String),
	}, nil)
	rb := array.NewRecordBuilder(memory.DefaultAllocator, s)
	for i := range 6 {
		rb.Field(0).(*array.BinaryBuilder).Append(bytes.Repeat([]byte{byte(i)}, referBytes+i))
		rb.Field(1).AppendNull()
		rb.Field(2).(*array.StringBuilder).Append(strings.Repeat("x", referBytes))
	}
	batch := rb.NewRecordBatch()
	st := load(t, s, 5*referBytes, batch) // two rows per chunk
	if chunks := len(st.sealed.Chunks); chunks != 3 {
		t.Fatalf("%d chunks", chunks)
	}
	for _, c := range []struct {
		columns []int
		rows    []int64
		refers  int
	}{
		{[]int{0, 1, 2}, []int64{0, 1}, 2}, {[]int{2, 0}, []int64{5, 3, 1}, 6}, {[]int{0}, []int64{1, 2, 3, 4}, 3}, {[]int{1}, []int64{1, 2}, 0}, {[]int{}, []int64{3}, 0},
	} {
		p, err := st.layout.Project(c.columns)
		if err != nil {
			t.Fatal(err)
		}
		m, _, err := st.rows.Gather(p, runsOf(c.rows...), len(c.rows), 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		refers := 0
		for _, b := range m.Body {
			for _, chunk := range st.sealed.Chunks {
				if from, at := uintptr(unsafe.Pointer(&chunk.body[0])), uintptr(unsafe.Pointer(&b[0])); at >= from && at < from+uintptr(len(chunk.body)) {
					refers++
				}
			}
		}
		if refers != c.refers {
			t.Errorf("columns %d of rows %d: %d slices of chunks, want %d", c.columns, c.rows, refers, c.refers)
		}
		equalBatches(t, "rows", decode(t, p.Schema(), m), take(t, project(batch, p), c.rows))
	}
}

func numbers(t testing.TB, from, to int) arrow.RecordBatch {
	t.Helper()
	rb := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{
		nullable("n", arrow.PrimitiveTypes.Int64), nullable("s", arrow.BinaryTypes.String),
	}, nil))
	defer rb.Release()
	for i := from; i < to; i++ {
		rb.Field(0).(*array.Int64Builder).Append(int64(i))
		rb.Field(1).(*array.StringBuilder).Append(strings.Repeat("x", i%50))
	}
	return rb.NewRecordBatch()
}

func TestCuts(t *testing.T) {
	const target = 16 << 10
	for _, c := range []struct {
		name  string
		sizes []int // rows of each batch
	}{
		{"one big", []int{20000}},
		{"single rows", slices.Repeat([]int{1}, 3000)},
		{"small", slices.Repeat([]int{37}, 200)},
		{"about the target", slices.Repeat([]int{380}, 40)},
		{"mixed", []int{1, 5000, 0, 3, 200, 1, 1, 900, 12000, 7}},
		{"less than one chunk", []int{10, 10}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var batches []arrow.RecordBatch
			at := 0
			for _, n := range c.sizes {
				batches = append(batches, numbers(t, at, at+n))
				at += n
			}
			st := load(t, batches[0].Schema(), target, batches...)
			rows, bytes := int64(0), int64(0)
			for i, ch := range st.sealed.Chunks {
				if ch.Rows() < 1 || ch.Bytes() > target+5*align {
					t.Errorf("chunk %d: %d rows, %d bytes", i, ch.Rows(), ch.Bytes())
				}
				rows, bytes = rows+int64(ch.Rows()), bytes+ch.Bytes()
			}
			if rows != int64(at) || st.sealed.Rows != rows || st.sealed.Bytes != bytes || st.rows.Bytes() != bytes {
				t.Errorf("%d rows, %d bytes; sealed says %d, %d", rows, bytes, st.sealed.Rows, st.sealed.Bytes)
			}
			if n := int64(len(st.sealed.Chunks)); n > 1 && bytes/n < target/2 {
				t.Errorf("%d chunks of %d bytes on average, target %d", n, bytes/n, target)
			}
			equalBatches(t, "rows", st.readRange(t, st.layout.All(), 0, rows), concat(t, st.layout.Schema(), batches))
		})
	}
}

// TestManySmallBatches checks that the builder buffers few batches at a time, however small they are.
func TestManySmallBatches(t *testing.T) {
	l, err := NewLayout(numbers(t, 0, 0).Schema())
	if err != nil {
		t.Fatal(err)
	}
	a := offheap.NewArena(offheap.NewBudget(1 << 30))
	defer a.Release()
	b := NewBuilder(l, a, 0)
	defer b.Close()
	const count = maxSources*maxSources + 100
	for i := range count {
		if err := b.Append(numbers(t, i, i+1), nil); err != nil {
			t.Fatal(err)
		}
		if len(b.sources) > 2*maxSources {
			t.Fatalf("%d sources after %d batches", len(b.sources), i+1)
		}
	}
	sealed, err := b.Finish()
	if err != nil || len(sealed.Chunks) != 1 {
		t.Fatalf("%d chunks, %v", len(sealed.Chunks), err)
	}
	r, err := NewRows(l, sealed.Chunks)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	got := store{rows: r}.readRange(t, l.All(), 0, count)
	equalBatches(t, "rows", got, numbers(t, 0, count))
}

// TestBudgetIsExact checks that the budget counts exactly the bytes of the chunks' bodies and headers.
func TestBudgetIsExact(t *testing.T) {
	for _, seed := range seedtest.Seeds(t, 10) {
		d := newDice(t, seed)
		s := d.schema()
		st := load(t, s, 3000, d.batch(t, s, 300), d.batch(t, s, 200))
		want := int64(0)
		for _, c := range st.sealed.Chunks {
			want += slabSize(c.layout, c.Bytes())
		}
		if st.budget.Used() != want || st.budget.Peak() != want || st.arena.Bytes() != want {
			t.Errorf("seed %d: used %d, peak %d, arena %d, want %d", seed, st.budget.Used(), st.budget.Peak(), st.arena.Bytes(), want)
		}
	}
}

// TestBuilderExhausted checks that a batch that doesn't fit fails with an error that has the numbers, is not retained, and leaves
// sealed rows usable.
func TestBuilderExhausted(t *testing.T) {
	mem := memory.NewCheckedAllocator(memory.DefaultAllocator)
	defer mem.AssertSize(t, 0)
	s := arrow.NewSchema([]arrow.Field{nullable("n", arrow.PrimitiveTypes.Float64)}, nil)
	nb := array.NewFloat64Builder(mem)
	defer nb.Release()
	nb.AppendValues(make([]float64, 4096), nil)
	column := nb.NewArray()
	defer column.Release()
	batch := array.NewRecordBatch(s, []arrow.Array{column}, 4096)
	defer batch.Release()
	l, err := NewLayout(s)
	if err != nil {
		t.Fatal(err)
	}
	budget := offheap.NewBudget(49_000)
	a := offheap.NewArena(budget)
	first, second := NewBuilder(l, a, 16<<10), NewBuilder(l, a, 16<<10)
	half := batch.NewSlice(0, 2048)
	defer half.Release()
	if err := first.Append(half, nil); err != nil {
		t.Fatal(err)
	}
	sealed, err := first.Finish()
	if err != nil {
		t.Fatal(err)
	}
	used := budget.Used()
	var full *offheap.ExhaustedError
	if err = second.Append(batch, nil); !errors.As(err, &full) || full.Limit != 49_000 || full.Used < used || full.Need < 1<<10 {
		t.Fatalf("append past the limit: %v", err)
	}
	if again := second.Append(batch, nil); !errors.Is(again, err) {
		t.Errorf("append after an error: %v", again)
	}
	if _, again := second.Finish(); !errors.Is(again, err) {
		t.Errorf("finish after an error: %v", again)
	}
	third := NewBuilder(l, a, 1<<20)
	if err := third.Append(batch, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := third.Finish(); !errors.As(err, &full) {
		t.Errorf("finish past the limit: %v", err)
	}
	r, err := NewRows(l, sealed.Chunks)
	if err != nil || r.Len() != 2048 {
		t.Fatalf("what was sealed before: %v", err)
	}
	r.Release()
	a.Release()
	if budget.Used() != 0 {
		t.Errorf("used %d after the release", budget.Used())
	}
}

// TestDiscard checks that a discarded builder's memory can be used by others, and that their rows stay.
func TestDiscard(t *testing.T) {
	const count = 20_000
	s := numbers(t, 0, 0).Schema()
	l, err := NewLayout(s)
	if err != nil {
		t.Fatal(err)
	}
	budget := offheap.NewBudget(1 << 30)
	a := offheap.NewArena(budget)
	kept, discarded := NewBuilder(l, a, 8<<10), NewBuilder(l, a, 8<<10)
	for at := 0; at < count; at += 1000 {
		if err := errors.Join(kept.Append(numbers(t, at, at+1000), nil), discarded.Append(numbers(t, 7, 1007), nil)); err != nil {
			t.Fatal(err)
		}
	}
	if discarded.Reserved() == 0 || discarded.Reserved()+kept.Reserved() != budget.Used() {
		t.Errorf("%d and %d bytes are reserved, of %d used", discarded.Reserved(), kept.Reserved(), budget.Used())
	}
	discarded.Discard()
	sealed, err := kept.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if budget.Used() != kept.Reserved() || a.Bytes() != kept.Reserved() || discarded.Append(numbers(t, 0, 1), nil) == nil {
		t.Errorf("used %d, arena %d, want %d", budget.Used(), a.Bytes(), kept.Reserved())
	}
	r, err := NewRows(l, sealed.Chunks)
	if err != nil {
		t.Fatal(err)
	}
	equalBatches(t, "rows", store{rows: r}.readRange(t, l.All(), 0, count), numbers(t, 0, count))
	r.Release()
	a.Release()
	if budget.Used() != 0 {
		t.Errorf("used %d after the release", budget.Used())
	}
}

// TestBuilderReleases checks that builders release every batch, whether they finish, fail or are closed.
func TestBuilderReleases(t *testing.T) {
	for _, end := range []string{"finish", "close", "fail"} {
		t.Run(end, func(t *testing.T) {
			mem := memory.NewCheckedAllocator(memory.DefaultAllocator)
			defer mem.AssertSize(t, 0)
			s := numbers(t, 0, 0).Schema()
			l, err := NewLayout(s)
			if err != nil {
				t.Fatal(err)
			}
			a := offheap.NewArena(offheap.NewBudget(1 << 30))
			defer a.Release()
			b := NewBuilder(l, a, 8<<10)
			for i := range 700 {
				rb := array.NewRecordBuilder(mem, s)
				rb.Field(0).(*array.Int64Builder).Append(int64(i))
				rb.Field(1).AppendNull()
				batch := rb.NewRecordBatch()
				if err := b.Append(batch, nil); err != nil {
					t.Fatal(err)
				}
				batch.Release()
				rb.Release()
			}
			switch end {
			case "finish":
				if _, err := b.Finish(); err != nil {
					t.Fatal(err)
				}
				if b.Append(numbers(t, 0, 1), nil) == nil {
					t.Error("append after finish")
				}
			case "fail":
				if b.Append(single(raw(arrow.Null, 1, nil, nil)), nil) == nil {
					t.Error("a batch of another schema is taken")
				}
			}
			b.Close()
		})
	}
}

func TestAppendRefuses(t *testing.T) {
	i32, str := arrow.PrimitiveTypes.Int32, arrow.BinaryTypes.String
	column := func(name string, required bool, d arrow.ArrayData) arrow.RecordBatch {
		s := arrow.NewSchema([]arrow.Field{{Name: name, Type: d.DataType(), Nullable: !required}}, nil)
		return array.NewRecordBatch(s, []arrow.Array{array.MakeFromData(d)}, int64(d.Len()))
	}
	ints := raw(i32, 2, nil, [][]byte{int32s(1, 2)})
	for _, c := range []struct {
		name  string
		field arrow.Field
		batch arrow.RecordBatch
		says  string
	}{
		{"name", nullable("v", i32), column("w", false, ints), `"w"`},
		{"type", nullable("v", str), column("v", false, ints), `column "v" is int32`},
		{"unit", nullable("v", arrow.FixedWidthTypes.Timestamp_ns), column("v", false, raw(arrow.FixedWidthTypes.Timestamp_us, 0, nil, [][]byte{{}})), `column "v"`},
		{"null in a required column", arrow.Field{Name: "v", Type: i32}, column("v", true, raw(i32, 2, []byte{0b10}, [][]byte{int32s(1, 2)})), `column "v" is required`},
		{"field of a struct", nullable("v", arrow.StructOf(nullable("a", i32))), column("v", false, raw(arrow.StructOf(nullable("b", i32)), 2, nil, nil, ints)), `"b"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := NewLayout(arrow.NewSchema([]arrow.Field{c.field}, nil))
			if err != nil {
				t.Fatal(err)
			}
			a := offheap.NewArena(offheap.NewBudget(1 << 20))
			defer a.Release()
			b := NewBuilder(l, a, 0)
			defer b.Close()
			if c.batch.NumRows() == 0 {
				err = b.match(c.batch.Schema())
			} else {
				err = b.Append(c.batch, nil)
			}
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want one with %s", err, c.says)
			}
		})
	}
}

// TestBrokenArrays checks that invalid arrays, as a broken decoder could return them, are rejected and not read beyond their end.
func TestBrokenArrays(t *testing.T) {
	i32, str := arrow.PrimitiveTypes.Int32, arrow.BinaryTypes.String
	ints := raw(i32, 2, nil, [][]byte{int32s(1, 2)})
	for name, d := range map[string]arrow.ArrayData{
		"short values":       raw(i32, 3, nil, [][]byte{int32s(1, 2)}),
		"short bitmap":       raw(i32, 9, []byte{1}, [][]byte{make([]byte, 36)}),
		"short bits":         raw(arrow.FixedWidthTypes.Boolean, 9, nil, [][]byte{{1}}),
		"short offsets":      raw(str, 2, nil, [][]byte{int32s(0, 1), []byte("ab")}),
		"falling offsets":    raw(str, 2, nil, [][]byte{int32s(0, 2, 1), []byte("ab")}),
		"negative offset":    raw(str, 1, nil, [][]byte{int32s(-1, 1), []byte("ab")}),
		"offsets past data":  raw(str, 1, nil, [][]byte{int32s(0, 3), []byte("ab")}),
		"offsets past child": raw(list(i32), 1, nil, [][]byte{int32s(0, 3)}, ints),
		"short child":        raw(arrow.FixedSizeListOf(2, i32), 2, nil, nil, ints),
		"short field":        raw(arrow.StructOf(nullable("a", i32)), 3, nil, nil, ints),
		"no child":           raw(list(i32), 1, nil, [][]byte{int32s(0, 1)}),
	} {
		l, err := NewLayout(arrow.NewSchema([]arrow.Field{nullable("v", d.DataType())}, nil))
		if err != nil {
			t.Fatal(err)
		}
		var c checker
		if err := c.check(l.nodes[0], d, 0, d.Len()); err == nil || !strings.Contains(err.Error(), `column "v`) {
			t.Errorf("%s: error %v doesn't name the column", name, err)
		}
	}
}

// TestRowTooLong checks that a row that exceeds 32-bit offsets is an error that names its widest column.
func TestRowTooLong(t *testing.T) {
	const size = 1<<31 + 100
	data, err := unix.Mmap(-1, 0, size, unix.PROT_READ, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Skipf("no address space for a row of 2 GiB: %v", err)
	}
	defer func() {
		if err := unix.Munmap(data); err != nil {
			t.Error(err)
		}
	}()
	offsets := arrow.Int64Traits.CastToBytes([]int64{0, 5, size})
	nothing := raw(arrow.Null, size, nil, nil)
	for name, wide := range map[string]arrow.ArrayData{
		"bytes": raw(arrow.BinaryTypes.LargeBinary, 2, nil, [][]byte{offsets, data}),
		"slots": raw(arrow.LargeListOf(arrow.Null), 2, nil, [][]byte{offsets}, nothing),
	} {
		s := arrow.NewSchema([]arrow.Field{nullable("small", arrow.PrimitiveTypes.Int32), nullable("wide", wide.DataType())}, nil)
		small := array.MakeFromData(raw(arrow.PrimitiveTypes.Int32, 2, nil, [][]byte{int32s(1, 2)}))
		l, err := NewLayout(s)
		if err != nil {
			t.Fatal(err)
		}
		a := offheap.NewArena(offheap.NewBudget(1 << 40))
		b := NewBuilder(l, a, 0)
		err = b.Append(array.NewRecordBatch(s, []arrow.Array{small, array.MakeFromData(wide)}, 2), nil)
		if err == nil {
			_, err = b.Finish()
		}
		if err == nil || !strings.Contains(err.Error(), `"wide"`) {
			t.Errorf("%s: error %v doesn't name the column", name, err)
		}
		b.Close()
		a.Release()
	}
}

func TestProjectLengths(t *testing.T) {
	rb := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{
		nullable("tokens", list(arrow.PrimitiveTypes.Int32)), nullable("text", arrow.BinaryTypes.LargeString), nullable("id", arrow.PrimitiveTypes.Int64),
	}, nil))
	want := [][2]int32{{3, 0}, {0, 2}, {0, 0}, {5, 7}}
	for i, w := range want {
		rb.Field(1).(*array.LargeStringBuilder).Append(strings.Repeat("x", int(w[1])))
		rb.Field(2).AppendNull()
		if i == 2 {
			rb.Field(0).AppendNull() // a null has the length 0
			continue
		}
		tokens := rb.Field(0).(*array.ListBuilder)
		tokens.Append(true)
		for range w[0] {
			tokens.ValueBuilder().(*array.Int32Builder).Append(1)
		}
	}
	st := load(t, rb.Schema(), 1, rb.NewRecordBatch()) // a row a chunk
	p, err := st.layout.Project([]int{4, 0, 3})
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Schema().Field(0); got.Name != "length(text)" || got.Nullable || p.Schema().Field(2).Name != "length(tokens)" {
		t.Errorf("schema %v", p.Schema())
	}
	for _, rows := range [][]int64{{0, 1, 2, 3}, {3, 3, 0}, {}} {
		got := st.readRows(t, p, rows, 1<<20)
		texts, tokens := got.Column(0).(*array.Int32), got.Column(2).(*array.Int32)
		for i, row := range rows {
			if texts.Value(i) != want[row][1] || tokens.Value(i) != want[row][0] {
				t.Errorf("row %d has lengths %d and %d, want %v", row, tokens.Value(i), texts.Value(i), want[row])
			}
		}
	}
	if _, err := st.layout.Project([]int{5}); err == nil || !strings.Contains(err.Error(), `"id" of type int64 has no lengths`) {
		t.Errorf("the lengths of a column of numbers: error %v", err)
	}
}
