// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
)

// sent records the messages that arrow-go's writer sends, and passes them to a reader.
type sent struct{ messages []*flight.FlightData }

func (s *sent) Send(m *flight.FlightData) error {
	s.messages = append(s.messages, proto.CloneOf(m))
	return nil
}

func (s *sent) Recv() (*flight.FlightData, error) {
	if len(s.messages) == 0 {
		return nil, io.EOF
	}
	m := s.messages[0]
	s.messages = s.messages[1:]
	return m, nil
}

// write sends rows with arrow-go: the schema with the ticket, then one batch.
func write(t testing.TB, field arrow.Field, metadata *arrow.Metadata, rows []int64, options ...ipc.Option) (schema, batch []byte) {
	t.Helper()
	var s sent
	of := arrow.NewSchema([]arrow.Field{field}, metadata)
	w := flight.NewRecordWriter(&s, append(options, ipc.WithSchema(of))...)
	w.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte("the ticket")})
	builder := array.NewInt64Builder(memory.DefaultAllocator)
	defer builder.Release()
	builder.AppendValues(rows, nil)
	if err := w.Write(array.NewRecordBatch(of, []arrow.Array{builder.NewArray()}, int64(len(rows)))); err != nil {
		t.Fatal(err)
	}
	return encode(t, s.messages[0]), encode(t, s.messages[1])
}

func encode(t testing.TB, m *flight.FlightData) []byte {
	t.Helper()
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// read parses an exchange with one batch.
func read(schema, batch []byte) (command []byte, rows []int64, err error) {
	first, err := ParseMessage(schema)
	if err != nil {
		return nil, nil, err
	}
	if err := Schema(first); err != nil {
		return nil, nil, err
	}
	second, err := ParseMessage(batch)
	if err != nil {
		return nil, nil, err
	}
	got, err := Batch(second)
	if err != nil {
		return nil, nil, err
	}
	for i := range got.Len() {
		rows = append(rows, got.At(i))
	}
	return first.Command, rows, nil
}

var row = arrow.Field{Name: "row", Type: arrow.PrimitiveTypes.Int64}

func TestArrowGo(t *testing.T) {
	nullable := row
	nullable.Nullable = true
	nullable.Metadata = arrow.NewMetadata([]string{"PARQUET:field_id"}, []string{"1"})
	metadata := arrow.NewMetadata([]string{"a", "b"}, []string{strings.Repeat("x", 1000), ""})
	long := make([]int64, 10_000)
	for i := range long {
		long[i] = int64(i) * 0x1234567
	}
	for name, rows := range map[string][]int64{"none": nil, "one": {5}, "extremes": {0, -1, math.MaxInt64, math.MinInt64}, "many": long} {
		for _, field := range []arrow.Field{row, nullable} {
			schema, batch := write(t, field, &metadata, rows)
			command, got, err := read(schema, batch)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if diff := cmp.Diff(rows, got); diff != "" || string(command) != "the ticket" {
				t.Errorf("%s: command %q, rows (-want +got):\n%s", name, command, diff)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	schema, batch := write(t, row, nil, []int64{1, 2, 3})
	_, compressed := write(t, row, nil, make([]int64, 10_000), ipc.WithZstd())
	other := func(f arrow.Field) []byte {
		var s sent
		w := flight.NewRecordWriter(&s, ipc.WithSchema(arrow.NewSchema([]arrow.Field{f}, nil)))
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return encode(t, s.messages[0])
	}
	dictionary := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.PrimitiveTypes.Int64}
	tests := []struct {
		name          string
		schema, batch []byte
		want          string
	}{
		{"no schema", batch, batch, "want a schema"},
		{"two schemas", schema, schema, "then record batches"},
		{"another name", other(arrow.Field{Name: "id", Type: row.Type}), batch, `column "id", want batches of one int64 column named row`},
		{"unsigned", other(arrow.Field{Name: "row", Type: arrow.PrimitiveTypes.Uint64}), batch, "signed: false"},
		{"int32", other(arrow.Field{Name: "row", Type: arrow.PrimitiveTypes.Int32}), batch, "an integer of 32 bits"},
		{"float", other(arrow.Field{Name: "row", Type: arrow.PrimitiveTypes.Float64}), batch, "Arrow type 3"},
		{"list", other(arrow.Field{Name: "row", Type: arrow.ListOf(row.Type)}), batch, "with 1 children"},
		{"dictionary", other(arrow.Field{Name: "row", Type: dictionary}), batch, "dictionary-encoded"},
		{"compressed", schema, compressed, "compressed"},
		{"empty", nil, batch, "leads out"},
		{"no protobuf", []byte{0xff}, batch, "not a protobuf message"},
		{"cut off", schema, batch[:len(batch)-1], "field 1000 is longer than the message"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, _, err := read(tt.schema, tt.batch); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

// TestSizesAreChecked sets each 32-bit word of a valid schema and batch to values that point outside the message. A message that is
// still accepted must yield the same rows.
func TestSizesAreChecked(t *testing.T) {
	schema, batch := write(t, row, nil, []int64{1, 2, 3})
	for which, original := range [][]byte{schema, batch} {
		for at := range len(original) - 3 {
			for _, value := range []uint32{math.MaxUint32, math.MaxInt32, 1 << 31, 1 << 20, 0} {
				messages := [][]byte{schema, batch}
				messages[which] = bytes.Clone(original)
				binary.LittleEndian.PutUint32(messages[which][at:], value)
				_, rows, err := read(messages[0], messages[1])
				if err == nil && len(rows) > len(batch)/rowWidth {
					t.Fatalf("message %d with %#x at %d has %d rows", which, value, at, len(rows))
				}
			}
		}
	}
}

// FuzzExchange compares with arrow-go: messages that both accept must have the same ticket and rows.
func FuzzExchange(f *testing.F) {
	metadata := arrow.NewMetadata([]string{"key"}, []string{"value"})
	for _, rows := range [][]int64{nil, {7}, {1, 2, 3}} {
		schema, batch := write(f, row, &metadata, rows)
		f.Add(schema, batch)
	}
	f.Fuzz(func(t *testing.T, schema, batch []byte) {
		if len(schema) > 4<<10 || len(batch) > 4<<10 { // arrow-go copies metadata as often as it is referenced
			t.Skip()
		}
		command, rows, err := read(schema, batch)
		if err != nil {
			return
		}
		wantCommand, want, err := reference(schema, batch)
		if err != nil {
			return // caused by parts that are not read here: the metadata's text, the column's flags
		}
		if !bytes.Equal(command, wantCommand) || !slices.Equal(rows, want) {
			t.Errorf("command %q, rows %v, arrow-go has %q and %v", command, rows, wantCommand, want)
		}
	})
}

// reference parses an exchange with protobuf and arrow-go.
func reference(messages ...[]byte) (command []byte, rows []int64, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("arrow-go panicked: %v", p)
		}
	}()
	var s sent
	for _, raw := range messages {
		var m flight.FlightData
		if err := proto.Unmarshal(raw, &m); err != nil {
			return nil, nil, err
		}
		s.messages = append(s.messages, &m)
	}
	command = s.messages[0].GetFlightDescriptor().GetCmd()
	reader, err := flight.NewRecordReader(&s)
	if err != nil {
		return nil, nil, err
	}
	defer reader.Release()
	if !reader.Next() {
		return nil, nil, reader.Err()
	}
	column, ok := reader.RecordBatch().Column(0).(*array.Int64)
	if !ok || column.NullN() > 0 {
		return nil, nil, fmt.Errorf("column %v", reader.RecordBatch().Column(0))
	}
	return command, slices.Clone(column.Int64Values()), nil
}
