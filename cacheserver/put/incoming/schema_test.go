// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package incoming

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	flatbuffers "github.com/google/flatbuffers/go"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// Slots and values of Message.fbs and Schema.fbs.
const (
	headerSchema  = 1
	typeInt       = 2
	typeTimestamp = 10
	typeStruct    = 13
)

// writer writes schemas in which tables and strings are shared as flatbuffers allow.
type writer struct{ *flatbuffers.Builder }

// pair is a key-value pair.
func (w writer) pair(key, value flatbuffers.UOffsetT) flatbuffers.UOffsetT {
	w.StartObject(2)
	w.PrependUOffsetTSlot(0, key, 0)
	w.PrependUOffsetTSlot(1, value, 0)
	return w.EndObject()
}

func (w writer) vector(of ...flatbuffers.UOffsetT) flatbuffers.UOffsetT {
	w.StartVector(4, len(of), 4)
	for _, each := range slices.Backward(of) {
		w.PrependUOffsetT(each)
	}
	return w.EndVector(len(of))
}

// kind is the table of a type: of 64-bit integers, of timestamps in a zone, or of structs.
func (w writer) kind(of byte, zone flatbuffers.UOffsetT) flatbuffers.UOffsetT {
	w.StartObject(2)
	switch of {
	case typeInt:
		w.PrependInt32Slot(0, 64, 0)
		w.PrependBoolSlot(1, true, false)
	case typeTimestamp:
		w.PrependInt16Slot(0, 2, 0)
		w.PrependUOffsetTSlot(1, zone, 0)
	}
	return w.EndObject()
}

func (w writer) field(name flatbuffers.UOffsetT, of byte, kind, children, pairs flatbuffers.UOffsetT) flatbuffers.UOffsetT {
	w.StartObject(7)
	w.PrependUOffsetTSlot(0, name, 0)
	w.PrependByteSlot(2, of, 0)
	w.PrependUOffsetTSlot(3, kind, 0)
	w.PrependUOffsetTSlot(5, children, 0)
	w.PrependUOffsetTSlot(6, pairs, 0)
	return w.EndObject()
}

// message is the Arrow IPC message of a schema.
func (w writer) message(fields, pairs flatbuffers.UOffsetT) []byte {
	w.StartObject(4)
	w.PrependUOffsetTSlot(1, fields, 0)
	w.PrependUOffsetTSlot(2, pairs, 0)
	schema := w.EndObject()
	w.StartObject(5)
	w.PrependInt16Slot(0, 4, 0)
	w.PrependByteSlot(1, headerSchema, 0)
	w.PrependUOffsetTSlot(2, schema, 0)
	w.Finish(w.EndObject())
	return w.FinishedBytes()
}

// shared are schemas of less than 100 KB that refer to few strings very often.
func shared() map[string][]byte {
	long := strings.Repeat("x", 20_000)
	all := map[string][]byte{}
	for what, build := range map[string]func(w writer) (fields []flatbuffers.UOffsetT, pairs flatbuffers.UOffsetT){
		"names": func(w writer) (fields []flatbuffers.UOffsetT, pairs flatbuffers.UOffsetT) {
			return slices.Repeat([]flatbuffers.UOffsetT{w.field(w.CreateString(long), typeInt, w.kind(typeInt, 0), 0, 0)}, 9_990), 0
		},
		"time zones": func(w writer) (fields []flatbuffers.UOffsetT, pairs flatbuffers.UOffsetT) {
			return slices.Repeat([]flatbuffers.UOffsetT{w.field(w.CreateString("t"), typeTimestamp, w.kind(typeTimestamp, w.CreateString(long)), 0, 0)}, 9_990), 0
		},
		"metadata of fields": func(w writer) (fields []flatbuffers.UOffsetT, pairs flatbuffers.UOffsetT) {
			pair := w.pair(w.CreateString("k"), w.CreateString(long))
			return slices.Repeat([]flatbuffers.UOffsetT{w.field(w.CreateString("a"), typeInt, w.kind(typeInt, 0), 0, w.vector(pair))}, 9_990), 0
		},
		"metadata": func(w writer) (fields []flatbuffers.UOffsetT, pairs flatbuffers.UOffsetT) {
			pair := w.pair(w.CreateString("k"), w.CreateString(long))
			return []flatbuffers.UOffsetT{w.field(w.CreateString("a"), typeInt, w.kind(typeInt, 0), 0, 0)}, w.vector(slices.Repeat([]flatbuffers.UOffsetT{pair}, 9_990)...)
		},
		"empty metadata": func(w writer) (fields []flatbuffers.UOffsetT, pairs flatbuffers.UOffsetT) {
			vector := w.vector(slices.Repeat([]flatbuffers.UOffsetT{w.pair(0, 0)}, 9_990)...)
			return slices.Repeat([]flatbuffers.UOffsetT{w.field(w.CreateString("a"), typeInt, w.kind(typeInt, 0), 0, vector)}, 9_990), 0
		},
		"a parent's name in the paths of its children": func(w writer) (fields []flatbuffers.UOffsetT, pairs flatbuffers.UOffsetT) {
			child := w.field(w.CreateString("c"), typeInt, w.kind(typeInt, 0), 0, 0)
			children := w.vector(slices.Repeat([]flatbuffers.UOffsetT{child}, 9_990)...)
			return []flatbuffers.UOffsetT{w.field(w.CreateString(long), typeStruct, w.kind(typeStruct, 0), children, 0)}, 0
		},
	} {
		w := writer{flatbuffers.NewBuilder(1 << 17)}
		fields, pairs := build(w)
		all[what] = w.message(w.vector(fields...), pairs)
	}
	return all
}

// TestSharedStrings checks that a schema is measured by what it takes once it is parsed, not by its length.
func TestSharedStrings(t *testing.T) {
	for what, schema := range shared() {
		if len(schema) > 100_000 {
			t.Errorf("%s: a schema of %d bytes, want less than 100 KB", what, len(schema))
		}
		_, err := New(protocol.Begin{Name: "a", Parts: 1, Schema: schema}, 1)
		if err == nil || !strings.Contains(err.Error(), "more than 4 MiB of names and metadata") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// wide returns schemas with as many fields as a put may have, or nearly so much text.
func wide() map[string]*arrow.Schema {
	fields := make([]arrow.Field, 9_900)
	for i := range fields {
		fields[i] = arrow.Field{Name: fmt.Sprintf("column %d", i), Type: arrow.PrimitiveTypes.Int64}
	}
	lists := make([]arrow.Field, 4_900)
	for i := range lists {
		lists[i] = arrow.Field{Name: fmt.Sprintf("column %d", i), Type: arrow.ListOf(arrow.BinaryTypes.String)}
	}
	text := arrow.NewMetadata([]string{"text"}, []string{strings.Repeat("x", 3<<20)})
	return map[string]*arrow.Schema{
		"integers":  arrow.NewSchema(fields, nil),
		"lists":     arrow.NewSchema(lists, nil),
		"in struct": arrow.NewSchema([]arrow.Field{{Name: strings.Repeat("p", 300), Type: arrow.StructOf(fields...)}}, nil),
		"metadata":  arrow.NewSchema(fields[:1], &text),
	}
}

// allocated is how many bytes a function allocates.
func allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// TestMemory compares what a schema is said to take with what parsing it allocates.
func TestMemory(t *testing.T) {
	for what, s := range wide() {
		schema := rows.SchemaHeader(s)
		says, err := Memory(schema)
		if err != nil {
			t.Fatal(err)
		}
		takes := allocated(func() { _, err = Layout(schema) })
		if err != nil {
			t.Fatal(err)
		}
		if takes > says || says > 4*takes {
			t.Errorf("%s: a schema that takes %d bytes to parse is said to take %d, want at least as much and at most four times", what, takes, says)
		}
	}
}

// FuzzSchemas changes numbers in schemas: no more memory may be allocated than Memory says, or little if the schema is refused.
func FuzzSchemas(f *testing.F) {
	var originals [][]byte
	all := wide()
	pair := arrow.StructOf(arrow.Field{Name: "a", Type: arrow.BinaryTypes.String}, arrow.Field{Name: "b", Type: arrow.FixedSizeListOf(3, arrow.FixedWidthTypes.Timestamp_us)})
	mixed := arrow.NewSchema([]arrow.Field{
		{Name: "l", Type: arrow.ListOf(pair), Nullable: true}, {Name: "m", Type: arrow.MapOf(arrow.BinaryTypes.String, pair)},
		{Name: "d", Type: &arrow.Decimal128Type{Precision: 9, Scale: 2}}, {Name: "f", Type: &arrow.FixedSizeBinaryType{ByteWidth: 16}},
	}, nil)
	for range 20 { // most mutants are of this one
		originals = append(originals, rows.SchemaHeader(mixed))
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		originals = append(originals, rows.SchemaHeader(all[name]))
	}
	for seed := range seedtest.Cases[uint64](300, 2000) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		d := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // repeatable
		schema := slices.Clone(originals[d.IntN(len(originals))])
		for range 1 + d.IntN(4) {
			at := d.IntN(len(schema)-4) &^ 3
			number := []uint32{0, 1, 4, 1 << 16, 1<<31 - 1, 1 << 31, 1<<32 - 1, uint32(len(schema)), uint32(d.IntN(len(schema))), binary.LittleEndian.Uint32(schema[at:]) + uint32(d.IntN(9)) - 4}[d.IntN(10)]
			binary.LittleEndian.PutUint32(schema[at:], number)
		}
		var says int64
		var err error
		takes := allocated(func() {
			if says, err = Memory(schema); err == nil {
				_, err = Layout(schema)
			}
		})
		if limit := max(says, 64<<10); takes > limit {
			t.Errorf("%d bytes were allocated for a schema that is said to take %d, error %v\n%x", takes, says, err, schema[:min(len(schema), 4096)])
		}
	})
}
