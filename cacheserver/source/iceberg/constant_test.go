// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	ice "github.com/apache/iceberg-go"
	"github.com/google/uuid"

	"github.com/kubeflow/datacache/test/kit/icetest"
)

// constantCase is the value of a column, in each form in which a reader may find it.
type constantCase struct {
	name     string
	old, typ ice.Type // type when it was written, and current type
	// the value in each of its sources
	partition any    // in a manifest, in the old type
	file      string // in a data file, in the old type, as Arrow's JSON
	initial   string // as a default in the metadata file, in the new type
	served    string // the expected result, as Arrow's JSON
	// filters that match the value and filters that don't
	matching, missing []string
}

func constantCases() []constantCase {
	id := uuid.MustParse("f79c3e09-677c-4bbd-a479-3f349cb785e7")
	types := ice.PrimitiveTypes
	decimal := func(unscaled int64) ice.DecimalLiteral {
		return ice.DecimalLiteral{Val: decimal128.FromI64(unscaled), Scale: 2}
	}
	wide := decimal128.FromU64(math.MaxUint64).Mul(decimal128.FromU64(1_000_000_007))
	day := ice.Date(19782) // 2024-02-29
	micros := ice.Timestamp(1709210096_123456)
	nanos := ice.TimestampNano(1709210096_123456789)
	return []constantCase{
		{"boolean", types.Bool, types.Bool, true, `true`, `true`, `true`, []string{"c", "c = true"}, []string{"NOT c", "c = false"}},
		{"int", types.Int32, types.Int32, int32(-7), `-7`, `-7`, `-7`, []string{"c = -7", "c < 0"}, []string{"c = 7", "c > -7"}},
		{"long", types.Int64, types.Int64, int64(math.MaxInt64), `9223372036854775807`, `9223372036854775807`, `9223372036854775807`, []string{"c = 9223372036854775807"}, []string{"c = 9223372036854775806", "c < 0"}},
		{"long beyond float64", types.Int64, types.Int64, int64(9007199254740993), `9007199254740993`, `9007199254740993`, `9007199254740993`, []string{"c = 9007199254740993"}, []string{"c = 9007199254740992"}},
		{"int to long", types.Int32, types.Int64, int32(-7), `-7`, `-7`, `-7`, []string{"c = -7", "c < 0", "c IN (-7, 5)"}, []string{"c = 7", "c > -7", "c NOT IN (-7)"}},
		{"float", types.Float32, types.Float32, float32(0.5), `0.5`, `0.5`, `0.5`, []string{"c = 0.5"}, []string{"c <> 0.5", "c > 0.5"}},
		{"double", types.Float64, types.Float64, 1e300, `1e300`, `1e300`, `1e+300`, []string{"c = 1e300"}, []string{"c < 1e300"}},
		{"float to double", types.Float32, types.Float64, float32(0.5), `0.5`, `0.5`, `0.5`, []string{"c = 0.5", "c IN (0.5, 1)", "c >= 0.5"}, []string{"c <> 0.5", "c > 0.5", "c NOT IN (0.5)"}},
		{"decimal", ice.DecimalTypeOf(9, 2), ice.DecimalTypeOf(9, 2), decimal(-12345), `"-123.45"`, `"-123.45"`, `"-123.45"`, []string{"c = -123.45", "c < 0"}, []string{"c > -123.45", "c = 123.45"}},
		{"decimal of 20 digits", ice.DecimalTypeOf(9, 2), ice.DecimalTypeOf(20, 2), decimal(12345), `"123.45"`, `"123.45"`, `"123.45"`, []string{"c = 123.45", "c < 123456789012345678"}, []string{"c > 123456789012345678"}},
		{"decimal of 38 digits", ice.DecimalTypeOf(38, 2), ice.DecimalTypeOf(38, 2), ice.DecimalLiteral{Val: wide, Scale: 2}, `"` + wide.ToString(2) + `"`, `"` + wide.ToString(2) + `"`, `"` + wide.ToString(2) + `"`, []string{"c = " + wide.ToString(2)}, []string{"c < 0"}},
		{"date", types.Date, types.Date, day, `"2024-02-29"`, `"2024-02-29"`, `"2024-02-29"`, []string{"c = DATE '2024-02-29'"}, []string{"c > DATE '2024-02-29'"}},
		{"date to timestamp", types.Date, types.Timestamp, day, `"2024-02-29"`, `"2024-02-29T00:00:00"`, `"2024-02-29T00:00:00"`, []string{"c = TIMESTAMP '2024-02-29T00:00:00'", "c > TIMESTAMP '2024-02-28T23:59:59'"}, []string{"c < TIMESTAMP '2024-02-29T00:00:00'"}},
		{"date to timestamp_ns", types.Date, types.TimestampNs, day, `"2024-02-29"`, `"2024-02-29"`, `"2024-02-29T00:00:00"`, []string{"c = TIMESTAMP '2024-02-29T00:00:00'"}, []string{"c < TIMESTAMP '2024-02-29T00:00:00'"}},
		{"time", types.Time, types.Time, ice.Time(45296_123456), `"12:34:56.123456"`, `"12:34:56.123456"`, `"12:34:56.123456"`, []string{"c = TIME '12:34:56.123456'"}, []string{"c > TIME '12:34:56.123456'"}},
		{"timestamp", types.Timestamp, types.Timestamp, micros, `"2024-02-29T12:34:56.123456"`, `"2024-02-29T12:34:56.123456"`, `"2024-02-29T12:34:56.123456"`, []string{"c = TIMESTAMP '2024-02-29T12:34:56.123456'"}, []string{"c < TIMESTAMP '2024-02-29'"}},
		{"timestamptz", types.TimestampTz, types.TimestampTz, micros, `"2024-02-29T12:34:56.123456Z"`, `"2024-02-29T12:34:56.123456+00:00"`, `"2024-02-29T12:34:56.123456Z"`, []string{"c = TIMESTAMP '2024-02-29T13:34:56.123456+01:00'"}, []string{"c < TIMESTAMP '2024-02-29T00:00Z'"}},
		{"timestamp_ns", types.TimestampNs, types.TimestampNs, nanos, `"2024-02-29T12:34:56.123456789"`, `"2024-02-29T12:34:56.123456789"`, `"2024-02-29T12:34:56.123456789"`, []string{"c = TIMESTAMP '2024-02-29T12:34:56.123456789'"}, []string{"c < TIMESTAMP '2024-02-29'"}},
		{"timestamptz_ns", types.TimestampTzNs, types.TimestampTzNs, nanos, `"2024-02-29T12:34:56.123456789Z"`, `"2024-02-29T12:34:56.123456789+00:00"`, `"2024-02-29T12:34:56.123456789Z"`, []string{"c = TIMESTAMP '2024-02-29T12:34:56.123456789Z'"}, []string{"c < TIMESTAMP '2024-02-29T00:00Z'"}},
		{"string", types.String, types.String, "it's", `"it's"`, `"it's"`, `"it's"`, []string{"c = 'it''s'", "c LIKE 'it%'"}, []string{"c < 'it'", "c LIKE 'x%'"}},
		{"uuid", types.UUID, types.UUID, id, `"` + id.String() + `"`, `"` + id.String() + `"`, `"` + id.String() + `"`, []string{"c = '" + id.String() + "'"}, []string{"c <> '" + id.String() + "'"}},
		{"fixed", ice.FixedTypeOf(4), ice.FixedTypeOf(4), []byte{0, 1, 0xfe, 0xff}, `"AAH+/w=="`, `"0001FEFF"`, `"AAH+/w=="`, []string{"c = X'0001feff'"}, []string{"c > X'0001feff'"}},
		{"binary", types.Binary, types.Binary, []byte{0, 1, 0xff}, `"AAH/"`, `"0001ff"`, `"AAH/"`, []string{"c = X'0001ff'"}, []string{"c > X'0001ff'"}},
	}
}

// TestValuesAndPromotions reads a column's value from each possible source, in the type that the column had at the time and in its
// current type: a data file, a partition of files that lack the column, the column's initial default, and none of these.
func TestValuesAndPromotions(t *testing.T) {
	for _, c := range constantCases() {
		t.Run(c.name, func(t *testing.T) {
			t.Run("in the file", func(t *testing.T) { c.check(t, c.inFile(t), c.served) })
			t.Run("partition", func(t *testing.T) { c.check(t, c.inPartition(t), c.served) })
			t.Run("initial default", func(t *testing.T) { c.check(t, c.asDefault(t), c.served) })
			t.Run("null partition", func(t *testing.T) { c.checkNull(t, c.nullPartition(t)) })
			t.Run("missing", func(t *testing.T) { c.checkNull(t, c.withoutColumn(t)) })
		})
	}
}

func (c constantCase) check(t *testing.T, metadata, served string) {
	t.Helper()
	both := []string{fmt.Sprintf(`{"c":%s,"id":1}`, served), fmt.Sprintf(`{"c":%s,"id":2}`, served)}
	check(t, openTable(t, metadata, Selection{}), both)
	check(t, openTable(t, metadata, Selection{Filter: c.all(), Columns: []string{"id"}}), []string{`{"id":1}`, `{"id":2}`})
	check(t, openTable(t, metadata, Selection{Filter: "id = 2 AND " + c.matching[0]}), both[1:])
	check(t, openTable(t, metadata, Selection{Filter: c.none()}), nil)
}

// all returns a filter that matches the value, and whose terms all don't match null.
func (c constantCase) all() string { return strings.Join(append(c.matching, "c IS NOT NULL"), " AND ") }

// none returns a filter of whose terms none matches the value; the last one matches null.
func (c constantCase) none() string { return strings.Join(append(c.missing, "c IS NULL"), " OR ") }

func (c constantCase) checkNull(t *testing.T, metadata string) {
	t.Helper()
	both := []string{`{"c":null,"id":1}`, `{"c":null,"id":2}`}
	check(t, openTable(t, metadata, Selection{}), both)
	check(t, openTable(t, metadata, Selection{Filter: c.none()}), both)
	check(t, openTable(t, metadata, Selection{Filter: strings.Join(append(c.matching, c.missing...), " OR ")}), nil)
}

// idSchema is the schema of the data files that lack column c.
var idSchema = arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true}}, nil)

const idRows = `[{"id":1},{"id":2}]`

func (c constantCase) schema() *ice.Schema {
	return ice.NewSchema(0, ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64}, ice.NestedField{ID: 2, Name: "c", Type: c.old})
}

func (c constantCase) inFile(t *testing.T) string {
	t.Helper()
	field, err := (&Table{}).fieldOf(ice.NestedField{Name: "c", Type: c.old})
	if err != nil {
		t.Fatal(err)
	}
	schema := arrow.NewSchema([]arrow.Field{idSchema.Field(0), {Name: "c", Type: field.Type, Nullable: true}}, nil)
	made := icetest.Local(t).Create("t", 3, c.schema())
	rows := fmt.Sprintf(`[{"id":1,"c":%s},{"id":2,"c":%s}]`, c.file, c.file)
	return c.promote(t, addFile(t, made, parquetFile(t, schema, rows), 2, nil), "")
}

func (c constantCase) inPartition(t *testing.T) string {
	t.Helper()
	return c.promote(t, c.partitioned(t, map[int]any{1000: c.partition}), "")
}

// nullPartition makes a table whose column has a default as well: the partition's null takes precedence over it.
func (c constantCase) nullPartition(t *testing.T) string {
	t.Helper()
	return c.promote(t, c.partitioned(t, map[int]any{1000: nil}), c.initial)
}

func (c constantCase) partitioned(t *testing.T, values map[int]any) string {
	t.Helper()
	made := icetest.Local(t).Create("t", 3, c.schema(), icetest.Partitioned(icetest.Identity(2, 1000, "c")))
	return addFile(t, made, parquetFile(t, idSchema, idRows), 2, values)
}

func (c constantCase) asDefault(t *testing.T) string {
	t.Helper()
	return c.promote(t, c.withoutColumn(t), c.initial)
}

func (c constantCase) withoutColumn(t *testing.T) string {
	t.Helper()
	made := icetest.Local(t).Create("t", 3, c.schema())
	return c.promote(t, addFile(t, made, parquetFile(t, idSchema, idRows), 2, nil), "")
}

// promote adds a schema in which column c has its new type, and an initial default if one is given.
func (c constantCase) promote(t *testing.T, metadata, initial string) string {
	t.Helper()
	return editMetadata(t, metadata, func(top map[string]any) {
		schemas := top["schemas"].([]any)
		text, err := json.Marshal(schemas[len(schemas)-1])
		if err != nil {
			t.Fatal(err)
		}
		next, err := decodeNumbers(text)
		if err != nil {
			t.Fatal(err)
		}
		field := next.(map[string]any)["fields"].([]any)[1].(map[string]any)
		field["type"] = c.typ.String()
		if initial != "" {
			field["initial-default"] = json.RawMessage(initial)
		}
		next.(map[string]any)["schema-id"], top["current-schema-id"] = len(schemas), len(schemas)
		top["schemas"] = append(schemas, next)
	})
}

// editMetadata writes an edited copy next to a metadata file and returns its name.
func editMetadata(t *testing.T, metadata string, edit func(map[string]any)) string {
	t.Helper()
	decoded, err := decodeNumbers(readFile(t, metadata))
	if err != nil {
		t.Fatal(err)
	}
	edit(decoded.(map[string]any))
	text, err := json.Marshal(decoded)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "edited.metadata.json")
	writeFile(t, name, text)
	return name
}
