// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package sink

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	arrowmemory "github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/codec"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/put/commit"
)

// hidden returns lists of which the null ones have values: [0 1], null, [4], null, [7 8].
func hidden(t *testing.T, dt arrow.DataType) arrow.Array {
	t.Helper()
	values := array.NewInt32Builder(arrowmemory.DefaultAllocator)
	defer values.Release()
	for i := range int32(10) {
		values.Append(i)
	}
	made := values.NewArray()
	defer made.Release()
	valid := arrowmemory.NewBufferBytes([]byte{0b10101})
	buffers := []*arrowmemory.Buffer{valid, arrowmemory.NewBufferBytes(arrow.Int32Traits.CastToBytes([]int32{0, 2, 4, 5, 7, 9}))}
	if dt.ID() == arrow.FIXED_SIZE_LIST {
		buffers = buffers[:1]
	}
	data := array.NewData(dt, 5, buffers, []arrow.ArrayData{made.Data()}, 2, 0)
	defer data.Release()
	return array.MakeFromData(data)
}

// TestWriteLists writes lists that have values where they are null, and slices of them, and reads them back.
func TestWriteLists(t *testing.T) {
	for _, dt := range []arrow.DataType{arrow.ListOf(arrow.PrimitiveTypes.Int32), arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int32)} {
		for _, lo := range []int64{0, 1, 3} {
			t.Run(fmt.Sprint(dt, lo), func(t *testing.T) {
				whole := hidden(t, dt)
				defer whole.Release()
				lists := array.NewSlice(whole, lo, 5)
				defer lists.Release()
				schema := arrow.NewSchema([]arrow.Field{{Name: "l", Type: dt, Nullable: true}}, nil)
				batch := array.NewRecordBatch(schema, []arrow.Array{lists}, 5-lo)
				defer batch.Release()
				text, err := lists.MarshalJSON()
				if err != nil {
					t.Fatal(err)
				}
				if got := written(t, batch); got != string(text) {
					t.Errorf("got  %s\nwant %s", got, text)
				}
			})
		}
	}
}

// written writes a batch as part 3, and returns the first column of the file as JSON.
func written(t *testing.T, batch arrow.RecordBatch) string {
	t.Helper()
	schema, err := icebergSchema(batch.Schema())
	if err != nil {
		t.Fatal(err)
	}
	o := order{Table: "db.t", Prefix: "file://" + t.TempDir() + "/data/f-", Schema: schema, Version: 2}
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	tables := &Tables{Store: objstore.New(objstore.Config{}), Budget: offheap.NewBudget(fileMemory)}
	var batches iter.Seq2[arrow.RecordBatch, error] = func(yield func(arrow.RecordBatch, error) bool) { yield(batch, nil) }
	var files [][]byte
	err = tables.Write(t.Context(), text, batch.Schema(), func(yield func(commit.Part) bool) { yield(commit.Part{Number: 3, Batches: batches}) }, func(f []byte) error {
		files = append(files, f)
		return nil
	})
	if err != nil || len(files) != 1 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	described, err := codec.DecodeDataFile(files[0], o.partitions(), schema, 2)
	if err != nil {
		t.Fatal(err)
	}
	if described.Count() != batch.NumRows() || described.FilePath() != o.Prefix+"00003-00000.parquet" {
		t.Errorf("%s with %d rows", described.FilePath(), described.Count())
	}
	data, err := tables.Store.ReadAtMost(t.Context(), described.FilePath(), 1<<20)
	if err != nil || int64(len(data)) != described.FileSizeBytes() {
		t.Fatalf("%d bytes of %d, %v", len(data), described.FileSizeBytes(), err)
	}
	rows, err := pqarrow.ReadTable(t.Context(), bytes.NewReader(data), nil, pqarrow.ArrowReadProperties{}, arrowmemory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Release()
	got, err := rows.Column(0).Data().Chunk(0).MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

func TestMatched(t *testing.T) {
	of := ice.NewSchema(0,
		ice.NestedField{ID: 7, Name: "id", Type: ice.PrimitiveTypes.Int64, Required: true},
		ice.NestedField{ID: 8, Name: "tags", Type: &ice.ListType{ElementID: 9, Element: ice.PrimitiveTypes.String}},
		ice.NestedField{ID: 10, Name: "more", Type: ice.PrimitiveTypes.Date},
	)
	id := arrow.Field{Name: "id", Type: arrow.PrimitiveTypes.Int64}
	tags := arrow.Field{Name: "tags", Type: arrow.LargeListOf(arrow.BinaryTypes.LargeString), Nullable: true}
	found, err := matched(of, arrow.NewSchema([]arrow.Field{tags, id}, nil))
	if err != nil {
		t.Fatal(err)
	}
	if f := found.Fields(); len(f) != 2 || f[0].ID != 8 || f[0].Type.(*ice.ListType).ElementID != 9 || f[1].ID != 7 {
		t.Errorf("fields: %v", f)
	}
	for want, columns := range map[string][]arrow.Field{
		`column "id", of type long: the table requires values`:      {{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true}},
		`column "id": int in the dataset, long in the table`:        {{Name: "id", Type: arrow.PrimitiveTypes.Int32}},
		`column "id", of type long: the table requires it`:          {tags},
		`column "x", of type int: the table has no such column`:     {id, {Name: "x", Type: arrow.PrimitiveTypes.Int32}},
		`column "tags".element: int in the dataset, string in`:      {id, {Name: "tags", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32), Nullable: true}},
		`column "tags": string in the dataset, list<string> in the`: {id, {Name: "tags", Type: arrow.BinaryTypes.String, Nullable: true}},
		`column "u": Iceberg has no type for all values of uint16`:  {id, {Name: "u", Type: arrow.ListOf(arrow.PrimitiveTypes.Uint16)}},
	} {
		if _, err := matched(of, arrow.NewSchema(columns, nil)); err == nil || !strings.Contains(err.Error(), want) || !permanent(err) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}
