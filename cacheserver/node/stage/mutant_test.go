// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/protocol/exchange"
	"github.com/kubeflow/datacache/cacheserver/put/incoming"
	"github.com/kubeflow/datacache/cacheserver/rows"
)

// originals are batches of every layout of memory that a put may have, most of one column, so that a mutant is damaged in few places.
func originals(t testing.TB) (all []arrow.RecordBatch) {
	t.Helper()
	pair := arrow.StructOf(arrow.Field{Name: "a", Type: arrow.BinaryTypes.String, Nullable: true}, arrow.Field{Name: "b", Type: arrow.PrimitiveTypes.Int16, Nullable: true})
	for _, c := range []struct {
		of   arrow.DataType
		rows string
	}{
		{arrow.PrimitiveTypes.Int64, `1, null, 3, 4`},
		{arrow.FixedWidthTypes.Boolean, `true, null, false, true, true, true, false, false, true`},
		{&arrow.FixedSizeBinaryType{ByteWidth: 3}, `"AAAA", null, "BBBB"`},
		{arrow.BinaryTypes.String, `"one", null, "", "two", "ü", "three", "four"`},
		{arrow.BinaryTypes.LargeString, `"one", null, "", "two", "ü", "three", "four"`},
		{arrow.BinaryTypes.Binary, `"AAAA", null, "", "BBBB", "CCCC"`},
		{arrow.BinaryTypes.LargeBinary, `"AAAA", null, "", "BBBB", "CCCC"`},
		{arrow.ListOf(arrow.PrimitiveTypes.Int32), `[1, 2], null, [], [3], [4, null, 5]`},
		{arrow.LargeListOf(arrow.BinaryTypes.String), `["1", "2"], null, [], ["3"], ["4", null, "5"]`},
		{arrow.FixedSizeListOf(2, arrow.BinaryTypes.String), `["1", "2"], null, ["3", null]`},
		{pair, `{"a": "1", "b": 2}, null, {"a": null, "b": 3}, {"a": "4", "b": null}`},
		{arrow.ListOf(arrow.ListOf(pair)), `[[{"a": "1", "b": 2}], []], null, [null, [{"a": "3", "b": null}, {"a": "5", "b": 4}]]`},
		{arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int32), `[{"key": "a", "value": 1}, {"key": "b", "value": null}], null, [], [{"key": "c", "value": 3}]`},
		{arrow.MapOf(arrow.PrimitiveTypes.Int8, pair), `[{"key": 1, "value": {"a": "1", "b": 2}}, {"key": 2, "value": null}], null`},
		{arrow.Null, `null, null, null`},
		{arrow.StructOf(arrow.Field{Name: "n", Type: arrow.Null, Nullable: true}, arrow.Field{Name: "f", Type: arrow.FixedSizeListOf(3, arrow.FixedWidthTypes.Boolean), Nullable: true}), `{"n": null, "f": [true, false, null]}, null`},
		{&arrow.Decimal128Type{Precision: 10, Scale: 2}, `"1.25", null, "3.00"`},
		{arrow.FixedWidthTypes.MonthDayNanoInterval, `{"months": 1, "days": 2, "nanoseconds": 3}, null`},
		{extensions.NewUUIDType(), `"00000000-0000-0000-0000-000000000001", null`},
		{extensions.NewBool8Type(), `true, null, false`},
	} {
		schema := arrow.NewSchema([]arrow.Field{{Name: "c", Type: c.of, Nullable: true}}, nil)
		rows := make([]string, 0)
		for _, row := range split(c.rows) {
			rows = append(rows, fmt.Sprintf(`{"c": %s}`, row))
		}
		b, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema, strings.NewReader("["+strings.Join(rows, ",")+"]"))
		if err != nil {
			t.Fatalf("%s: %v", c.of, err)
		}
		all = append(all, b)
	}
	return append(all, batch(t, 0, 20))
}

// split splits a list of JSON values at its outermost commas.
func split(list string) (values []string) {
	depth, start := 0, 0
	for i, r := range list {
		switch r {
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		case ',':
			if depth == 0 {
				values, start = append(values, list[start:i]), i+1
			}
		}
	}
	return append(values, list[start:])
}

// extremes are numbers at which lengths and offsets overflow, of 64 bits; their lower halves are those of 32 bits.
var extremes = []uint64{0, 1, 2, 7, 8, 0x7f, 0xff, 1 << 16, 1<<31 - 1, 1 << 31, 1<<31 + 1, 1<<32 - 1, 1<<32 - 1000, 1 << 61, 1<<62 - 1, 1<<63 - 1, 1 << 63, 1<<63 + 1, 1<<64 - 1, 1<<64 - 1000}

// mutate changes one to four numbers that follow each other, of 1, 4 or 8 bytes, in a range of a message.
func mutate(d *rand.Rand, bytes []byte) {
	width := []int{1, 4, 4, 8}[d.IntN(4)]
	if len(bytes) < width {
		return
	}
	at := d.IntN(len(bytes)-width+1) / width * width
	for range 1 + d.IntN(4) {
		if at+width > len(bytes) {
			return
		}
		number := extremes[d.IntN(len(extremes))]
		switch d.IntN(4) {
		case 0:
			number = uint64(d.IntN(100))
		case 1:
			var old [8]byte
			copy(old[:], bytes[at:at+width])
			number += binary.LittleEndian.Uint64(old[:])
		}
		var changed [8]byte
		binary.LittleEndian.PutUint64(changed[:], number)
		copy(bytes[at:at+width], changed[:])
		at += width
	}
}

// mutant is a copy of a message of rows with random changes: in its body, in the numbers of its header, or anywhere.
func mutant(d *rand.Rand, original []byte) []byte {
	raw := slices.Clone(original)
	m, err := exchange.ParseMessage(raw)
	if err != nil {
		panic(err)
	}
	for range 1 + d.IntN(3) {
		switch columns, err := exchange.ReadColumns(m); {
		case d.IntN(20) == 0:
			mutate(d, raw)
		case d.IntN(10) == 0: // such as one buffer, or node, in the place of another
			from, to := d.IntN(max(1, len(m.Header)-16)), d.IntN(max(1, len(m.Header)-16))
			copy(m.Header[to&^7:], m.Header[from&^7:][:16])
		case d.IntN(4) == 0 || err != nil || len(columns.Buffers) == 0:
			mutate(d, m.Header)
		default:
			mutate(d, columns.Buffers[d.IntN(len(columns.Buffers))])
		}
	}
	return raw
}

// accept takes a message of rows as a stage does. What is accepted has to be valid by Arrow's own checks, before and after it was stored, and has
// to keep its content.
func accept(layout *rows.Layout, raw []byte) (accepted bool, err error) {
	m, err := exchange.ParseMessage(raw)
	if err != nil || len(m.Header) == 0 {
		return false, nil
	}
	batch, err := readBatch(layout, m)
	if err != nil {
		return false, nil
	}
	defer batch.Release()
	if err := valid(batch); err != nil && !strings.Contains(err.Error(), "not valid utf8") { // it may be in a null slot, which is stored as an empty one
		return true, fmt.Errorf("accepted: %w", err)
	}
	arena := offheap.NewArena(offheap.NewBudget(64 << 20))
	defer arena.Release()
	builder, content, after := rows.NewBuilder(layout, arena, 0), layout.NewContent(), layout.NewContent()
	defer builder.Close()
	if builder.Append(batch, nil) != nil {
		return false, nil
	}
	content.Add(batch)
	sealed, err := builder.Finish()
	if err != nil {
		return false, nil
	}
	stored, err := rows.NewRows(layout, sealed.Chunks)
	if err != nil {
		return true, err
	}
	defer stored.Release()
	for got, err := range stored.Records(layout.All(), 0, stored.Len()) {
		if err != nil {
			return true, err
		}
		if err := valid(got); err != nil {
			return true, fmt.Errorf("stored: %w", err)
		}
		after.Add(got)
	}
	if content.Sum() != after.Sum() {
		return true, fmt.Errorf("stored %d rows with another content than the %d that came", after.Rows(), content.Rows())
	}
	return true, nil
}

// valid is arrow-go's full validation, which wants a buffer of null arrays that its own reader doesn't make.
func valid(batch arrow.RecordBatch) error {
	if err := array.ValidateRecordFull(batch); err != nil && !strings.Contains(err.Error(), "expected at least 1 buffers for null") {
		return err
	}
	return nil
}

// FuzzMutants changes numbers in messages of rows. What Arrow's own full validation refuses has to be refused.
func FuzzMutants(f *testing.F) {
	var layouts []*rows.Layout
	var messages [][]byte
	for _, b := range originals(f) {
		layout, err := incoming.Layout(rows.SchemaHeader(b.Schema()))
		if err != nil {
			f.Fatal(err)
		}
		raw := write(f, "", b)[1]
		if ok, err := accept(layout, raw); !ok || err != nil {
			f.Fatalf("%s unchanged: %t, %v", b.Schema(), ok, err)
		}
		layouts, messages = append(layouts, layout), append(messages, raw)
	}
	for i := range messages {
		for seed := range uint64(300) {
			f.Add(i, seed)
		}
	}
	f.Fuzz(func(t *testing.T, which int, seed uint64) {
		which = int(uint(which) % uint(len(messages)))
		raw := mutant(rand.New(rand.NewPCG(seed, 0)), messages[which]) //nolint:gosec // repeatable
		if _, err := accept(layouts[which], raw); err != nil {
			t.Errorf("%s: %v\n%x", layouts[which].Schema(), err, raw)
		}
	})
}
