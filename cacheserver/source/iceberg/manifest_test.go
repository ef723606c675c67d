// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"regexp"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/decimal128"
	ice "github.com/apache/iceberg-go"
	"github.com/google/uuid"

	"github.com/kubeflow/datacache/test/kit/icetest"
)

// Definitions of two fixed types in an Avro schema.
var (
	decimalDefinition = regexp.MustCompile(`\{[^{}]*"logicalType":"decimal"[^{}]*\}`)
	uuidDefinition    = regexp.MustCompile(`\{[^{}]*"logicalType":"uuid"[^{}]*\}`)
	nameInDefinition  = regexp.MustCompile(`"name":"(\w+)"`)
)

// TestTwoDecimalPartitionFields reads a manifest as Iceberg's Java library writes it, in which the second decimal of one precision
// refers to the Avro type of the first one. iceberg-go cannot write two decimals, so the second one is written as a uuid, which has
// 16 bytes as well.
func TestTwoDecimalPartitionFields(t *testing.T) {
	made := icetest.Local(t).Create("t", 2, ice.NewSchema(0,
		ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64},
		ice.NestedField{ID: 2, Name: "a", Type: ice.DecimalTypeOf(38, 2)},
		ice.NestedField{ID: 3, Name: "b", Type: ice.PrimitiveTypes.UUID},
	), icetest.Partitioned(icetest.Identity(2, 1000, "a"), icetest.Identity(3, 1001, "b")))
	minus250 := uuid.MustParse("ffffffff-ffff-ffff-ffff-ffffffffff06")
	written := addFile(t, made, parquetFile(t, idSchema, idRows), 2, map[int]any{1000: ice.DecimalLiteral{Val: decimal128.FromI64(150), Scale: 2}, 1001: minus250})
	metadata := editMetadata(t, written, func(top map[string]any) {
		field := top["schemas"].([]any)[0].(map[string]any)["fields"].([]any)[2].(map[string]any)
		field["type"] = "decimal(38, 2)"
	})
	tbl := openTable(t, written, Selection{})
	planOf(t, tbl)
	for uri := range *tbl.manifests.Load() {
		writeFile(t, uri, referToFixed(t, readFile(t, uri)))
	}
	both := []string{`{"a":"1.5","b":"-2.5","id":1}`, `{"a":"1.5","b":"-2.5","id":2}`}
	for filter, want := range map[string][]string{
		"":                       both,
		"a = 1.5 AND b = -2.5":   both,
		"b = -2.5 AND id = 2":    both[1:],
		"b < -2.5":               nil,
		"a IN (1.5) AND b < 0":   both,
		"NOT (a > 1 AND b >= 0)": both,
	} {
		check(t, openTable(t, metadata, Selection{Filter: filter, TrustManifests: true}), want) // its size is not the one in the manifest list
	}
}

// referToFixed changes the second decimal of a manifest to a reference to the first one's type.
func referToFixed(t *testing.T, manifest []byte) []byte {
	t.Helper()
	header, blocks, err := avroHeader(manifest)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range header {
		if e.key != avroSchema {
			continue
		}
		name := nameInDefinition.FindSubmatch(decimalDefinition.Find(e.value))
		if name == nil || !uuidDefinition.Match(e.value) {
			t.Fatalf("the manifest's schema has no decimal or no uuid: %s", e.value)
		}
		header[i].value = uuidDefinition.ReplaceAll(e.value, []byte(`"`+string(name[1])+`"`))
	}
	return append(appendAvroHeader(header), blocks...)
}

func TestSpellOut(t *testing.T) {
	const definition = `{"logicalType":"uuid","name":"uuid_fixed","size":16,"type":"fixed"}`
	const again = `{"logicalType":"uuid","name":"uuid_fixed_1","size":16,"type":"fixed"}`
	field := func(name, typ string) string { return `{"name":"` + name + `","type":["null",` + typ + `]}` }
	for name, tt := range map[string]struct{ schema, want string }{
		"none":       {`{"type":"record","fields":[` + field("x", `"int"`) + `]}`, ``},
		"one":        {`{"type":"record","fields":[` + field("x", definition) + `]}`, ``},
		"two":        {`{"type":"record","fields":[` + field("x", definition) + `,` + field("y", `"uuid_fixed"`) + `]}`, `{"fields":[` + field("x", definition) + `,` + field("y", again) + `],"type":"record"}`},
		"in a list":  {`{"type":"record","fields":[` + field("x", definition) + `,` + field("y", `{"type":"array","items":"uuid_fixed"}`) + `]}`, `{"fields":[` + field("x", definition) + `,` + field("y", `{"items":`+again+`,"type":"array"}`) + `],"type":"record"}`},
		"in records": {`{"type":"record","fields":[` + field("x", `{"type":"record","fields":[`+field("y", definition)+`]}`) + `,` + field("z", `"uuid_fixed"`) + `]}`, `{"fields":[` + field("x", `{"fields":[`+field("y", definition)+`],"type":"record"}`) + `,` + field("z", again) + `],"type":"record"}`},
	} {
		t.Run(name, func(t *testing.T) {
			file := append(appendAvroHeader([]avroEntry{{"content", []byte("data")}, {avroSchema, []byte(tt.schema)}}), "blocks"...)
			got, err := spellOut(file)
			if err != nil {
				t.Fatal(err)
			}
			header, rest, err := avroHeader(got)
			if err != nil || string(rest) != "blocks" || header[0].key != "content" || string(header[0].value) != "data" {
				t.Fatalf("header %s, rest %s, %v", header, rest, err)
			}
			if want := strings.ReplaceAll(tt.want, "\n", ""); want != "" && string(header[1].value) != want {
				t.Errorf("got  %s\nwant %s", header[1].value, want)
			}
			if tt.want == "" && string(got) != string(file) {
				t.Errorf("the file changed: %s", got)
			}
		})
	}
}

func TestSpellOutOfCorruptFiles(t *testing.T) {
	whole := append(appendAvroHeader([]avroEntry{{avroSchema, []byte(`{"type":"fixed"}`)}}), "blocks"...)
	for n := range len(whole) - len("blocks") {
		if _, err := spellOut(whole[:n]); err == nil {
			t.Errorf("no error for the first %d bytes", n)
		}
	}
	if _, err := spellOut(appendAvroHeader([]avroEntry{{avroSchema, []byte(`{"fixed"`)}})); err == nil {
		t.Error("no error for a schema that is no JSON")
	}
}
