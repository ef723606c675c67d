// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"bytes"
	"errors"
	"testing"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/schema"
	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/test/kit/icetest"
)

// TestListsOfListsInTwoLevels reads lists in the two-level form of old Avro and Hive writers: a repeated group is itself a list.
func TestListsOfListsInTwoLevels(t *testing.T) {
	made := icetest.Local(t).Create("t", 2, ice.NewSchema(0, ice.NestedField{ID: 1, Name: "a", Type: &ice.ListType{
		ElementID: 2, ElementRequired: true,
		Element: &ice.ListType{ElementID: 3, Element: ice.PrimitiveTypes.Int64, ElementRequired: true},
	}}))
	metadata := addFile(t, made, twoLevelLists(t), 5, nil)
	check(t, openTable(t, metadata, Selection{}), []string{
		`{"a":[[1,2],[3,4]]}`,
		`{"a":[[5],[],[6,7,8]]}`,
		`{"a":[[]]}`,
		`{"a":[]}`,
		`{"a":null}`,
	})
}

// twoLevelLists returns a file with optional group a (LIST) { repeated group array (LIST) { repeated int32 array } }.
func twoLevelLists(t *testing.T) []byte {
	t.Helper()
	repeated, err := schema.NewPrimitiveNode("array", parquet.Repetitions.Repeated, parquet.Types.Int32, -1, -1)
	inner, err2 := schema.NewGroupNodeLogical("array", parquet.Repetitions.Repeated, schema.FieldList{repeated}, schema.NewListLogicalType(), -1)
	outer, err3 := schema.NewGroupNodeLogical("a", parquet.Repetitions.Optional, schema.FieldList{inner}, schema.NewListLogicalType(), -1)
	root, err4 := schema.NewGroupNode("schema", parquet.Repetitions.Required, schema.FieldList{outer}, -1)
	if err := errors.Join(err, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := file.NewParquetWriter(&out, root)
	group, err := w.AppendRowGroupChecked()
	if err != nil {
		t.Fatal(err)
	}
	column, err := group.NextColumn()
	if err != nil {
		t.Fatal(err)
	}
	values := []int32{1, 2, 3, 4, 5, 6, 7, 8}
	def := []int16{3, 3, 3, 3, 0, 1, 2, 3, 2, 3, 3, 3}
	rep := []int16{0, 2, 1, 2, 0, 0, 0, 0, 1, 1, 2, 2}
	_, err = column.(*file.Int32ColumnChunkWriter).WriteBatch(values, def, rep)
	if err := errors.Join(err, column.Close(), group.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
