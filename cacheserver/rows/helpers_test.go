// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/kubeflow/datacache/cacheserver/offheap"
)

// batchFromJSON makes a batch of a schema from a JSON array of objects.
func batchFromJSON(t testing.TB, s *arrow.Schema, rows string) arrow.RecordBatch {
	t.Helper()
	b, _, err := array.RecordFromJSON(memory.DefaultAllocator, s, strings.NewReader(rows))
	if err != nil {
		t.Fatalf("rows %s: %v", rows, err)
	}
	return b
}

// stream is the IPC stream of messages of one schema.
func stream(s *arrow.Schema, messages ...Message) []byte {
	var out bytes.Buffer
	put := func(header []byte) {
		size := (len(header) + 7) &^ 7
		_ = binary.Write(&out, binary.LittleEndian, uint32(0xFFFFFFFF))
		_ = binary.Write(&out, binary.LittleEndian, uint32(size))
		out.Write(header)
		out.Write(make([]byte, size-len(header)))
	}
	put(SchemaHeader(s))
	for _, m := range messages {
		put(m.Header)
		for _, b := range m.Body {
			out.Write(b)
		}
	}
	_ = binary.Write(&out, binary.LittleEndian, []uint32{0xFFFFFFFF, 0})
	return out.Bytes()
}

// decode reads messages with arrow-go's reader, releases them, and returns their rows as one batch.
func decode(t testing.TB, s *arrow.Schema, messages ...Message) arrow.RecordBatch {
	t.Helper()
	for i, m := range messages {
		length := 0
		for _, b := range m.Body {
			length += len(b)
		}
		if length != m.BodyLen || length%8 != 0 {
			t.Fatalf("message %d: body of %d bytes, BodyLen %d", i, length, m.BodyLen)
		}
	}
	data := stream(s, messages...)
	for _, m := range messages {
		m.Release()
	}
	r, err := ipc.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatalf("ipc reader: %v", err)
	}
	defer r.Release()
	var batches []arrow.RecordBatch
	for i, m := range messages {
		b, err := r.Read()
		if err != nil {
			t.Fatalf("ipc message %d: %v", i, err)
		}
		if int(b.NumRows()) != m.Rows {
			t.Fatalf("ipc message %d has %d rows, Rows says %d", i, b.NumRows(), m.Rows)
		}
		if b.Schema().String() != s.String() {
			t.Fatalf("ipc message %d has schema %v, want %v", i, b.Schema(), s)
		}
		columns := make([]arrow.Array, b.NumCols())
		for c := range columns {
			columns[c] = array.MakeFromData(retyped(b.Column(c).Data(), s.Field(c).Type))
		}
		batches = append(batches, array.NewRecordBatch(s, columns, b.NumRows()))
	}
	if _, err := r.Read(); !errors.Is(err, io.EOF) {
		t.Fatalf("after the last message: %v", err)
	}
	return concat(t, s, batches)
}

// retyped returns d with a type of the same layout: arrow-go's reader and writer use different names for the fields of maps.
func retyped(d arrow.ArrayData, dt arrow.DataType) arrow.ArrayData {
	kids := make([]arrow.ArrayData, len(d.Children()))
	if nested, ok := dt.(arrow.NestedType); ok {
		for i, f := range nested.Fields() {
			kids[i] = retyped(d.Children()[i], f.Type)
		}
	}
	return array.NewData(dt, d.Len(), d.Buffers(), kids, d.NullN(), d.Offset())
}

func concat(t testing.TB, s *arrow.Schema, batches []arrow.RecordBatch) arrow.RecordBatch {
	t.Helper()
	rows := int64(0)
	for _, b := range batches {
		rows += b.NumRows()
	}
	columns := make([]arrow.Array, s.NumFields())
	for i, f := range s.Fields() {
		parts := []arrow.Array{array.NewBuilder(memory.DefaultAllocator, f.Type).NewArray()}
		for _, b := range batches {
			parts = append(parts, b.Column(i))
		}
		var err error
		if columns[i], err = array.Concatenate(parts, memory.DefaultAllocator); err != nil {
			t.Fatalf("concatenate %s: %v", f.Name, err)
		}
	}
	return array.NewRecordBatch(s, columns, rows)
}

// project returns some columns of a batch, with the schema of p.
func project(b arrow.RecordBatch, p *Projection) arrow.RecordBatch {
	var columns []arrow.Array
	for _, c := range p.columns {
		if own := int(b.NumCols()); c >= own {
			columns = append(columns, lengthsOf(b.Column(c-own)))
		} else {
			columns = append(columns, b.Column(c))
		}
	}
	return array.NewRecordBatch(p.Schema(), columns, b.NumRows())
}

// lengthsOf is the number of items, or of bytes, of each value; 0 for a null.
func lengthsOf(values arrow.Array) arrow.Array {
	lengths := array.NewInt32Builder(memory.DefaultAllocator)
	if x, ok := values.(array.ExtensionArray); ok {
		values = x.Storage()
	}
	for i := range values.Len() {
		var n int64
		switch v := values.(type) {
		case array.ListLike:
			from, to := v.ValueOffsets(i)
			n = to - from
		case interface{ ValueLen(int) int }:
			n = int64(v.ValueLen(i))
		default:
			panic("lengths of " + values.DataType().String())
		}
		if values.IsNull(i) {
			n = 0
		}
		lengths.Append(int32(n))
	}
	return lengths.NewArray()
}

// take is the reference selection of rows: arrow-go's take or, for types that it does not support, concatenated slices.
func take(t testing.TB, b arrow.RecordBatch, rows []int64) arrow.RecordBatch {
	t.Helper()
	ib := array.NewInt64Builder(memory.DefaultAllocator)
	ib.AppendValues(rows, nil)
	indices := ib.NewArray()
	columns := make([]arrow.Array, b.NumCols())
	for i, c := range b.Columns() {
		var err error
		if columns[i], err = compute.TakeArray(t.Context(), c, indices); err != nil {
			columns[i] = takeSlices(t, c, rows)
		}
	}
	return array.NewRecordBatch(b.Schema(), columns, int64(len(rows)))
}

func takeSlices(t testing.TB, c arrow.Array, rows []int64) arrow.Array {
	t.Helper()
	parts := []arrow.Array{array.NewSlice(c, 0, 0)}
	for _, r := range rows {
		parts = append(parts, array.NewSlice(c, r, r+1))
	}
	out, err := array.Concatenate(parts, memory.DefaultAllocator)
	if err != nil {
		t.Fatalf("concatenate: %v", err)
	}
	return out
}

func equalBatches(t testing.TB, what string, got, want arrow.RecordBatch) {
	t.Helper()
	if got.NumRows() != want.NumRows() || got.NumCols() != want.NumCols() {
		t.Fatalf("%s: %d rows, %d columns, want %d, %d", what, got.NumRows(), got.NumCols(), want.NumRows(), want.NumCols())
	}
	for i := range int(got.NumCols()) {
		if !array.Equal(got.Column(i), want.Column(i)) {
			t.Fatalf("%s: column %s (%s) differs:\n got %.2000s\nwant %.2000s", what, got.ColumnName(i), got.Column(i).DataType(), got.Column(i), want.Column(i))
		}
		if a, b := got.Column(i).NullN(), want.Column(i).NullN(); a != b {
			t.Fatalf("%s: column %s has %d nulls, want %d", what, got.ColumnName(i), a, b)
		}
	}
}

// store holds batches as chunks, as a node does.
type store struct {
	budget *offheap.Budget
	arena  *offheap.Arena
	layout *Layout
	sealed Sealed
	rows   *Rows
}

// load builds rows of batches; they are released at the end of the test, which must leave the budget empty.
func load(t testing.TB, s *arrow.Schema, target int, batches ...arrow.RecordBatch) store {
	t.Helper()
	l, err := NewLayout(s)
	if err != nil {
		t.Fatalf("layout: %v", err)
	}
	st := store{budget: offheap.NewBudget(1 << 40), layout: l}
	st.arena = offheap.NewArena(st.budget)
	b := NewBuilder(l, st.arena, target)
	defer b.Close()
	for i, batch := range batches {
		if err := b.Append(batch, nil); err != nil {
			t.Fatalf("append batch %d: %v", i, err)
		}
	}
	st.finish(t, b)
	return st
}

// finish finishes the builder and makes Rows of its chunks.
func (st *store) finish(t testing.TB, b *Builder) {
	t.Helper()
	var err error
	if st.sealed, err = b.Finish(); err != nil {
		t.Fatalf("finish: %v", err)
	}
	if st.rows, err = NewRows(st.layout, st.sealed.Chunks); err != nil {
		t.Fatalf("rows: %v", err)
	}
	t.Cleanup(func() {
		st.arena.Release()
		st.rows.Release()
		if used := st.budget.Used(); used != 0 {
			t.Errorf("%d bytes are reserved after the last release: a message was not released", used)
		}
	})
}

// readRange reads rows [lo, hi) with Range.
func (st store) readRange(t testing.TB, p *Projection, lo, hi int64) arrow.RecordBatch {
	t.Helper()
	var messages []Message
	for m, err := range st.rows.Range(p, lo, hi) {
		if err != nil {
			t.Fatalf("range [%d, %d): %v", lo, hi, err)
		}
		messages = append(messages, m)
	}
	return decode(t, p.Schema(), messages...)
}

// runsOf converts rows to runs; consecutive rows form runs of at most 1, 2, 3, 4, 5, 1, 2 ... rows.
func runsOf(rows ...int64) []Run {
	var runs []Run
	for i, row := range rows {
		if last := len(runs) - 1; i > 0 && row == rows[i-1]+1 && runs[last].Rows <= uint64(last%5) {
			runs[last].Rows++
		} else {
			runs = append(runs, Run{First: uint64(row), Rows: 1})
		}
	}
	return runs
}

// records returns rows [lo, hi) as the record batches of Records, concatenated. Each is copied, as it is valid only until the next one.
func (st store) records(t testing.TB, p *Projection, lo, hi int64) arrow.RecordBatch {
	t.Helper()
	var batches []arrow.RecordBatch
	for b, err := range st.rows.Records(p, lo, hi) {
		if err != nil {
			t.Fatal(err)
		}
		columns := make([]arrow.Array, b.NumCols())
		for i, c := range b.Columns() {
			columns[i] = array.MakeFromData(retyped(c.Data(), p.Schema().Field(i).Type))
		}
		batches = append(batches, concat(t, p.Schema(), []arrow.RecordBatch{array.NewRecordBatch(p.Schema(), columns, b.NumRows())}))
	}
	return concat(t, p.Schema(), batches)
}

// readRows reads rows with Gather, in as many messages as necessary, every other one into memory given for it.
func (st store) readRows(t testing.TB, p *Projection, rows []int64, maxBytes int) arrow.RecordBatch {
	t.Helper()
	var messages []Message
	runs, left := runsOf(rows...), len(rows)
	for first := true; first || left > 0; first = false {
		again := slices.Clone(runs)
		m, rest, err := st.rows.Gather(p, runs, left, maxBytes)
		if err != nil {
			t.Fatalf("gather: %v", err)
		}
		if m.Rows == 0 && left > 0 || m.Rows > 1 && m.BodyLen > maxBytes || (len(rest) == 0) != (m.Rows == left) {
			t.Fatalf("gather took %d of %d rows, and %d bytes, and left %d runs", m.Rows, left, m.BodyLen, len(rest))
		}
		if list := int64(cap(m.Body)) * sliceBytes; list != m.lease.listed {
			t.Fatalf("gather made a list of %d slices, which is %d bytes, and reserved %d", cap(m.Body), list, m.lease.listed)
		}
		if len(messages)%2 == 1 {
			m = st.gatherInto(t, p, again, m)
		}
		messages = append(messages, m)
		runs, left = rest, left-m.Rows
	}
	return decode(t, p.Schema(), messages...)
}

// gatherInto makes a message again, in memory given for it, and releases the other one.
func (st store) gatherInto(t testing.TB, p *Projection, runs []Run, m Message) Message {
	t.Helper()
	defer m.Release()
	memory := bytes.Repeat([]byte{0xff}, 2*m.BodyLen+64*p.Nodes()+1)
	into, _, err := st.rows.Gather(p.Into(memory), runs, m.Rows, math.MaxInt32)
	if err != nil {
		t.Fatalf("gather into memory: %v", err)
	}
	if into.Rows != m.Rows || m.BodyLen > 0 && (!into.Placed || &into.Body[0][0] != &memory[0]) {
		t.Fatalf("gather into memory took %d of %d rows; placed: %t", into.Rows, m.Rows, into.Placed)
	}
	return into
}

// dice generates random types and values.
type dice struct{ *rand.Rand }

func newDice(t testing.TB, seed uint64) dice {
	t.Logf("seed %d", seed)
	return dice{rand.New(rand.NewPCG(seed, 1))}
}

func (d dice) leaf() arrow.DataType {
	leaves := []arrow.DataType{
		arrow.Null, arrow.FixedWidthTypes.Boolean,
		arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Uint16, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64,
		arrow.FixedWidthTypes.Float16, arrow.PrimitiveTypes.Float32, arrow.PrimitiveTypes.Float64,
		&arrow.Decimal128Type{Precision: 38, Scale: 9}, &arrow.Decimal256Type{Precision: 40, Scale: 1},
		arrow.FixedWidthTypes.Date32, arrow.FixedWidthTypes.Time64us,
		&arrow.TimestampType{Unit: arrow.Microsecond}, arrow.FixedWidthTypes.Timestamp_us, arrow.FixedWidthTypes.Timestamp_ns,
		&arrow.FixedSizeBinaryType{ByteWidth: 5}, &arrow.FixedSizeBinaryType{ByteWidth: 16}, extensions.NewUUIDType(),
		arrow.BinaryTypes.String, arrow.BinaryTypes.Binary, arrow.BinaryTypes.LargeString, arrow.BinaryTypes.LargeBinary,
	}
	return leaves[d.IntN(len(leaves))]
}

func (d dice) dataType(depth int) arrow.DataType {
	if depth == 0 || d.IntN(2) == 0 {
		return d.leaf()
	}
	elem := func(name string) arrow.Field {
		return arrow.Field{Name: name, Type: d.dataType(depth - 1), Nullable: true}
	}
	switch d.IntN(5) {
	case 0:
		return arrow.ListOfField(elem("element"))
	case 1:
		return arrow.LargeListOfField(elem("element"))
	case 2:
		return arrow.FixedSizeListOfField(int32(1+d.IntN(3)), elem("element"))
	case 3:
		return arrow.MapOf(arrow.BinaryTypes.String, d.dataType(depth-1))
	}
	fields := make([]arrow.Field, 1+d.IntN(3))
	for i := range fields {
		fields[i] = elem(fmt.Sprintf("f%d", i))
	}
	return arrow.StructOf(fields...)
}

func (d dice) schema() *arrow.Schema {
	fields := make([]arrow.Field, 1+d.IntN(5))
	for i := range fields {
		fields[i] = arrow.Field{Name: fmt.Sprintf("c%d", i), Type: d.dataType(3), Nullable: true}
	}
	return arrow.NewSchema(fields, nil)
}

// batch returns n random rows, often as a slice of a larger batch.
func (d dice) batch(t testing.TB, s *arrow.Schema, n int) arrow.RecordBatch {
	t.Helper()
	before, after := d.IntN(2)*d.IntN(70), d.IntN(2)*d.IntN(70)
	columns := make([]arrow.Array, s.NumFields())
	for i, f := range s.Fields() {
		b := array.NewBuilder(memory.DefaultAllocator, f.Type)
		nullsIn := []int{0, 2, 10}[d.IntN(3)]
		for range before + n + after {
			d.append(t, b, nullsIn)
		}
		columns[i] = array.NewSlice(b.NewArray(), int64(before), int64(before+n))
	}
	return array.NewRecordBatch(s, columns, int64(n))
}

// append appends one random value, which is null with probability 1/nullsIn; never if nullsIn is 0.
func (d dice) append(t testing.TB, b array.Builder, nullsIn int) {
	t.Helper()
	if _, isNull := b.(*array.NullBuilder); isNull || nullsIn > 0 && d.IntN(nullsIn) == 0 {
		b.AppendNull()
		return
	}
	switch b := b.(type) {
	case *array.BooleanBuilder:
		b.Append(d.IntN(2) == 0)
	case *array.StringBuilder:
		b.Append(d.text())
	case *array.LargeStringBuilder:
		b.Append(d.text())
	case *array.BinaryBuilder:
		b.Append([]byte(d.text()))
	case *array.FixedSizeBinaryBuilder:
		v := make([]byte, b.Type().(*arrow.FixedSizeBinaryType).ByteWidth)
		for i := range v {
			v[i] = byte(d.IntN(256))
		}
		b.Append(v)
	case *array.ListBuilder:
		b.Append(true)
		d.appendN(t, b.ValueBuilder(), d.IntN(4), nullsIn)
	case *array.LargeListBuilder:
		b.Append(true)
		d.appendN(t, b.ValueBuilder(), d.IntN(4), nullsIn)
	case *array.FixedSizeListBuilder:
		b.Append(true)
		d.appendN(t, b.ValueBuilder(), int(b.Type().(*arrow.FixedSizeListType).Len()), nullsIn)
	case *array.MapBuilder:
		b.Append(true)
		n := d.IntN(3)
		d.appendN(t, b.KeyBuilder(), n, 0)
		d.appendN(t, b.ItemBuilder(), n, nullsIn)
	case *array.StructBuilder:
		b.Append(true)
		for i := range b.NumField() {
			d.append(t, b.FieldBuilder(i), nullsIn)
		}
	case *array.ExtensionBuilder:
		d.append(t, b.StorageBuilder(), 0)
	case *extensions.UUIDBuilder:
		var v [16]byte
		binary.LittleEndian.PutUint64(v[:], d.Uint64())
		b.AppendBytes(v)
	default:
		d.appendNumber(t, b)
	}
}

func (d dice) appendN(t testing.TB, b array.Builder, n, nullsIn int) {
	t.Helper()
	for range n {
		d.append(t, b, nullsIn)
	}
}

func (d dice) appendNumber(t testing.TB, b array.Builder) {
	t.Helper()
	text := fmt.Sprint(d.IntN(120))
	switch b.Type().ID() {
	case arrow.DATE32:
		text = "2024-02-29"
	case arrow.TIME64:
		text = fmt.Sprintf("01:02:%02d.000003", d.IntN(60))
	case arrow.TIMESTAMP:
		text = fmt.Sprintf("2024-02-29T01:02:%02d", d.IntN(60))
		if b.Type().(*arrow.TimestampType).TimeZone != "" {
			text += "Z"
		}
	}
	if err := b.AppendValueFromString(text); err != nil {
		t.Fatalf("append %q to %s: %v", text, b.Type(), err)
	}
}

func (d dice) text() string {
	return strings.Repeat(string(rune('a'+d.IntN(26))), d.IntN(2)*d.IntN(40))
}
