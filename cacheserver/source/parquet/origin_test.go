// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"bytes"
	"encoding/base64"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/parquet/metadata"
)

// written are the columns of a file with FuzzOrigin's schema, as Parquet's types say.
func written() []*fileColumn {
	column := func(name string, t arrow.DataType, kids ...*fileColumn) *fileColumn {
		return &fileColumn{field: arrow.Field{Name: name, Type: t}, kids: kids}
	}
	list, stamp := arrow.ListOf(arrow.PrimitiveTypes.Float32), arrow.FixedWidthTypes.Timestamp_ms
	return []*fileColumn{
		column("v", list, column("element", arrow.PrimitiveTypes.Float32)), column("d", arrow.PrimitiveTypes.Int64),
		column("s", arrow.StructOf(arrow.Field{Name: "t", Type: stamp}), column("t", stamp)),
		column("x", list, column("element", arrow.PrimitiveTypes.Float32)),
		column("a", arrow.ListOf(list), column("element", list, column("element", arrow.PrimitiveTypes.Float32))),
	}
}

// FuzzOrigin checks that a stored Arrow schema, which is untrusted, breaks nothing.
func FuzzOrigin(f *testing.F) {
	const shape = `{"shape":[2,3],"permutation":[1,0]}`
	var out bytes.Buffer
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "v", Type: arrow.FixedSizeListOf(3, arrow.PrimitiveTypes.Float32)},
		{Name: "d", Type: arrow.FixedWidthTypes.Duration_ms},
		{Name: "s", Type: arrow.StructOf(arrow.Field{Name: "t", Type: &arrow.TimestampType{Unit: arrow.Second, TimeZone: "Europe/Berlin"}})},
		{Name: "x", Type: arrow.FixedSizeListOf(6, arrow.PrimitiveTypes.Float32), Metadata: extension(tensorName, shape)},
		{Name: "a", Type: arrow.ListOf(arrow.ListOf(arrow.PrimitiveTypes.Float32)), Metadata: extension("datasets.features.features.Array2DExtensionType", `[[null, 7], "float32"]`)},
	}, nil)
	if err := ipc.NewWriter(&out, ipc.WithSchema(schema)).Close(); err != nil {
		f.Fatal(err)
	}
	f.Add(out.Bytes())
	stored := metadata.NewKeyValueMetadata()
	if err := stored.Append(originKey, base64.StdEncoding.EncodeToString(out.Bytes())); err != nil {
		f.Fatal(err)
	}
	columns := written()
	if refine(columns, stored); columns[0].size != 3 || columns[1].origin.String() != "duration[ms]" || columns[2].kids[0].origin.String() != "timestamp[ms, tz=Europe/Berlin]" {
		f.Fatalf("the schema says %v of %d, %v, %v", schema, columns[0].size, columns[1].origin, columns[2].kids[0].origin)
	}
	if array := columns[4]; columns[3].tensor != shape || array.size != 0 || array.kids[0].size != 7 || array.kids[0].width() != 7 {
		f.Fatalf("the schema says %v of a tensor %q and an array of %d, %d", schema, columns[3].tensor, array.size, array.kids[0].size)
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		stored := metadata.NewKeyValueMetadata()
		if err := stored.Append(originKey, base64.StdEncoding.EncodeToString(message)); err != nil {
			t.Fatal(err)
		}
		refine(written(), stored)
	})
}

func extension(name, metadata string) arrow.Metadata {
	return arrow.NewMetadata([]string{extensionName, extensionMetadata}, []string{name, metadata})
}

func TestTensors(t *testing.T) {
	t.Parallel()
	for metadata, want := range map[string]bool{
		`{"shape":[2,3]}`: true,
		`{"shape":[6],"permutation":[0],"dim_names":["x"]}`: true,
		`{"shape":[2,3],"permutation":[1,0]}`:               true,
		`{"shape":[2,2]}`:                                   false,
		`{"shape":[]}`:                                      false,
		`{"shape":[-2,-3]}`:                                 false,
		`{"shape":[0,6]}`:                                   false,
		`{"shape":[4294967296,4294967296,6]}`:               false,
		`{"shape":[2,3],"permutation":[1]}`:                 false,
		`{"shape":[2,3],"permutation":[1,1]}`:               false,
		`{"shape":[2,3],"dim_names":["x"]}`:                 false,
		`{"shape":"2,3"}`:                                   false,
		``:                                                  false,
	} {
		if got := isTensor(metadata, 6); got != want {
			t.Errorf("isTensor(%s, 6) = %t", metadata, got)
		}
	}
}
