// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"
)

func nullable(name string, dt arrow.DataType) arrow.Field {
	return arrow.Field{Name: name, Type: dt, Nullable: true}
}

func list(dt arrow.DataType) arrow.DataType { return arrow.ListOfField(nullable("element", dt)) }

// cases cover every type that an Iceberg table can yield, with empty values and nulls at every level.
var cases = []struct {
	name string
	dt   arrow.DataType
	rows []string // JSON values
}{
	{"null", arrow.Null, []string{`null`, `null`}},
	{"boolean", arrow.FixedWidthTypes.Boolean, []string{`true`, `null`, `false`, `true`}},
	{"int", arrow.PrimitiveTypes.Int32, []string{`1`, `null`, `-2147483648`}},
	{"long", arrow.PrimitiveTypes.Int64, []string{`1`, `null`, `3`}},
	{"float", arrow.PrimitiveTypes.Float32, []string{`1.5`, `null`, `-0.0`}},
	{"double", arrow.PrimitiveTypes.Float64, []string{`1.5`, `null`, `1e300`}},
	{"decimal", &arrow.Decimal128Type{Precision: 38, Scale: 2}, []string{`"1.25"`, `null`, `"-99999999999999999999.01"`}},
	{"date", arrow.FixedWidthTypes.Date32, []string{`"2024-02-29"`, `null`}},
	{"time", arrow.FixedWidthTypes.Time64us, []string{`"01:02:03.000004"`, `null`}},
	{"timestamp", &arrow.TimestampType{Unit: arrow.Microsecond}, []string{`"2024-02-29 01:02:03.000004"`, `null`}},
	{"timestamptz", arrow.FixedWidthTypes.Timestamp_us, []string{`"2024-02-29 01:02:03.000004Z"`, `null`}},
	{"timestamptz_ns", arrow.FixedWidthTypes.Timestamp_ns, []string{`"2024-02-29 01:02:03.000004000Z"`, `null`}},
	{"fixed", &arrow.FixedSizeBinaryType{ByteWidth: 3}, []string{`"AQID"`, `null`}},
	{"uuid", extensions.NewUUIDType(), []string{`"00000000-0000-0000-0000-0000000000aa"`, `null`}},
	{"string", arrow.BinaryTypes.String, []string{`"a"`, `""`, `null`, `"déjà"`}},
	{"large_string", arrow.BinaryTypes.LargeString, []string{`""`, `"b"`, `null`}},
	{"binary", arrow.BinaryTypes.Binary, []string{`"AQID"`, `""`, `null`}},
	{"large_binary", arrow.BinaryTypes.LargeBinary, []string{`null`, `"AQID"`}},
	{"list", list(arrow.PrimitiveTypes.Int32), []string{`[1,null,3]`, `[]`, `null`, `[4]`}},
	{"large_list", arrow.LargeListOfField(nullable("element", arrow.BinaryTypes.String)), []string{`["",null]`, `[]`, `null`}},
	{"fixed_size_list", arrow.FixedSizeListOfField(2, nullable("element", arrow.PrimitiveTypes.Int16)), []string{`[1,2]`, `null`, `[null,4]`}},
	{"map", arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int64), []string{`[{"key":"a","value":1},{"key":"b","value":null}]`, `[]`, `null`}},
	{"struct", arrow.StructOf(nullable("a", arrow.PrimitiveTypes.Int32), nullable("b", arrow.BinaryTypes.String)), []string{`{"a":1,"b":"x"}`, `null`, `{"a":null,"b":null}`, `{"a":3,"b":""}`}},
	{
		"list of struct", list(arrow.StructOf(nullable("a", list(arrow.BinaryTypes.String)), nullable("b", arrow.FixedWidthTypes.Boolean))),
		[]string{`[{"a":["x",null,""],"b":true},null,{"a":null,"b":null},{"a":[],"b":false}]`, `[]`, `null`, `[null]`},
	},
	{
		"list of list", list(list(list(arrow.PrimitiveTypes.Int8))),
		[]string{`[[[1,null],[],null],[],null]`, `[]`, `null`, `[[[2]]]`},
	},
	{
		"map of struct of list", arrow.MapOf(arrow.BinaryTypes.String, arrow.StructOf(nullable("l", list(arrow.PrimitiveTypes.Float64)))),
		[]string{`[{"key":"a","value":{"l":[1.5,null]}},{"key":"","value":null},{"key":"c","value":{"l":null}}]`, `[]`, `null`},
	},
}

func TestTypes(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := arrow.NewSchema([]arrow.Field{nullable("v", c.dt)}, nil)
			var rows []string
			for _, row := range c.rows {
				rows = append(rows, `{"v":`+row+`}`)
			}
			whole := batchFromJSON(t, s, "["+strings.Join(rows, ",")+"]")
			want := concat(t, s, []arrow.RecordBatch{whole, whole.NewSlice(1, whole.NumRows()), whole.NewSlice(0, 0), whole})
			st := load(t, s, 256, whole, whole.NewSlice(1, whole.NumRows()), whole.NewSlice(0, 0), whole)
			p := st.layout.All()
			equalBatches(t, "range", st.readRange(t, p, 0, want.NumRows()), want)
			equalBatches(t, "records", st.records(t, p, 0, want.NumRows()), want)
			var backwards []int64
			for r := want.NumRows() - 1; r >= 0; r-- {
				backwards = append(backwards, r, r)
				equalBatches(t, fmt.Sprintf("range from %d", r), st.readRange(t, p, r, want.NumRows()), want.NewSlice(r, want.NumRows()))
				equalBatches(t, fmt.Sprintf("records from %d", r), st.records(t, p, r, want.NumRows()), want.NewSlice(r, want.NumRows()))
				equalBatches(t, fmt.Sprintf("row %d", r), st.readRows(t, p, []int64{r}, 1<<20), want.NewSlice(r, r+1))
			}
			equalBatches(t, "gather", st.readRows(t, p, backwards, 1<<20), takeRows(t, want, backwards))
			equalBatches(t, "no rows", st.readRows(t, p, nil, 1<<20), want.NewSlice(0, 0))
		})
	}
}

func takeRows(t *testing.T, b arrow.RecordBatch, rows []int64) arrow.RecordBatch {
	t.Helper()
	columns := make([]arrow.Array, b.NumCols())
	for i, c := range b.Columns() {
		columns[i] = takeSlices(t, c, rows)
	}
	return array.NewRecordBatch(b.Schema(), columns, int64(len(rows)))
}

// readStream is a Python program that prints the contents of a stream of TestPyArrow.
const readStream = `
import sys, pyarrow as pa
table = pa.ipc.open_stream(sys.argv[1]).read_all()
table.validate(full=True)
print(table.num_rows, table.num_columns)
for name in ("string", "list of struct", "long"):
    print(table[name].to_pylist())
rows = table.to_pylist()
order = [0, 1, 2, 3, 1, 2, 3, 0, 0]
print(all(repr(rows[i]) == repr(rows[order[i]]) for i in range(len(rows))))
`

// TestPyArrow checks that pyarrow reads the messages, considers them valid and sees the same values.
func TestPyArrow(t *testing.T) {
	python := os.Getenv("DATACACHE_PYTHON")
	if python == "" {
		t.Skip("set DATACACHE_PYTHON to a python that has pyarrow")
	}
	var fields []arrow.Field
	var want []map[string]json.RawMessage
	for i := range 4 {
		row := map[string]json.RawMessage{}
		for _, c := range cases {
			row[c.name] = json.RawMessage(c.rows[i%len(c.rows)])
		}
		want = append(want, row)
	}
	for _, c := range cases {
		fields = append(fields, nullable(c.name, c.dt))
	}
	s := arrow.NewSchema(fields, nil)
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	st := load(t, s, 0, batchFromJSON(t, s, string(text)))
	var messages []Message
	for _, cut := range [][2]int64{{0, 4}, {1, 3}} {
		for m, err := range st.rows.Range(st.layout.All(), cut[0], cut[1]) {
			if err != nil {
				t.Fatal(err)
			}
			defer m.Release()
			messages = append(messages, m)
		}
	}
	picked, _, err := st.rows.Gather(st.layout.All(), runsOf(3, 0, 0), 3, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer picked.Release()
	file := filepath.Join(t.TempDir(), "stream.arrow")
	if err := os.WriteFile(file, stream(s, append(messages, picked)...), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), python, "-c", readStream, file).CombinedOutput()
	if err != nil {
		t.Fatalf("pyarrow: %v\n%s", err, out)
	}
	const last = `[{'a': ['x', None, ''], 'b': True}, None, {'a': None, 'b': None}, {'a': [], 'b': False}]`
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	wantLines := []string{
		fmt.Sprintf("9 %d", len(cases)),
		"['a', '', None, 'déjà', '', None, 'déjà', 'a', 'a']",
		"[" + strings.Join([]string{last, "[]", "None", "[None]", "[]", "None", "[None]", last, last}, ", ") + "]",
		"[1, None, 3, 1, None, 3, 1, 1, 1]",
		"True",
	}
	if diff := cmp.Diff(wantLines, lines); diff != "" {
		t.Errorf("pyarrow (-want +got):\n%s", diff)
	}
}

func TestEmpty(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{nullable("a", arrow.BinaryTypes.String), nullable("b", list(arrow.BinaryTypes.String))}, nil)
	st := load(t, s, 0)
	if st.rows.Len() != 0 || st.rows.Bytes() != 0 || len(st.sealed.Chunks) != 0 || st.budget.Used() != 0 {
		t.Errorf("no batches: %d rows, %d bytes, %d chunks, %d used", st.rows.Len(), st.rows.Bytes(), len(st.sealed.Chunks), st.budget.Used())
	}
	for m, err := range st.rows.Range(st.layout.All(), 0, 0) {
		t.Errorf("range of nothing yields %v, %v", m, err)
	}
	if got := st.readRows(t, st.layout.All(), nil, 10); got.NumRows() != 0 || got.NumCols() != 2 {
		t.Errorf("gather of nothing: %v", got)
	}
	if _, _, err := st.rows.Gather(st.layout.All(), runsOf(0), 1, 10); err == nil {
		t.Error("row 0 of no rows is not an error")
	}
}

func TestNoColumns(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{nullable("a", arrow.PrimitiveTypes.Int64)}, nil)
	st := load(t, s, 64, batchFromJSON(t, s, `[{"a":1},{"a":2},{"a":3},{"a":4},{"a":5},{"a":6},{"a":7},{"a":8},{"a":9}]`))
	p, err := st.layout.Project([]int{})
	if err != nil {
		t.Fatal(err)
	}
	if got := st.readRows(t, p, []int64{8, 8, 0}, 0); got.NumRows() != 3 {
		t.Errorf("gather: %d rows", got.NumRows())
	}
	rows := 0
	for m, err := range st.rows.Range(p, 1, 9) {
		if err != nil {
			t.Fatal(err)
		}
		rows += int(decode(t, p.Schema(), m).NumRows())
	}
	if rows != 8 {
		t.Errorf("range: %d rows", rows)
	}
	none := load(t, arrow.NewSchema(nil, nil), 0, array.NewRecordBatch(arrow.NewSchema(nil, nil), nil, 5))
	if none.rows.Len() != 5 {
		t.Errorf("table without columns: %d rows", none.rows.Len())
	}
}

func TestHugeRow(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{nullable("a", arrow.PrimitiveTypes.Int64), nullable("b", arrow.BinaryTypes.Binary)}, nil)
	rb := array.NewRecordBuilder(memory.DefaultAllocator, s)
	huge := bytes.Repeat([]byte("0123456789abcdef"), 20<<16)
	for i := range 7 {
		rb.Field(0).(*array.Int64Builder).Append(int64(i))
		rb.Field(1).(*array.BinaryBuilder).Append(huge[:[]int{10, len(huge), 0, 3 << 20, 2 << 20, 5, 6}[i]])
	}
	batch := rb.NewRecordBatch()
	st := load(t, s, 0, batch)
	for i, c := range st.sealed.Chunks {
		if c.Bytes() > TargetBytes && c.Rows() != 1 {
			t.Errorf("chunk %d has %d rows and %d bytes", i, c.Rows(), c.Bytes())
		}
	}
	equalBatches(t, "range", st.readRange(t, st.layout.All(), 0, 7), batch)
	equalBatches(t, "edges", st.readRange(t, st.layout.All(), 4, 6), batch.NewSlice(4, 6))
	equalBatches(t, "gather", st.readRows(t, st.layout.All(), []int64{6, 1, 4, 0}, TargetBytes), take(t, batch, []int64{6, 1, 4, 0}))
}

func TestDictionary(t *testing.T) {
	table := func(text arrow.DataType) *arrow.Schema {
		m := arrow.MapOf(arrow.BinaryTypes.String, text)
		m.KeysSorted = true
		return arrow.NewSchema([]arrow.Field{
			nullable("a", text), nullable("b", list(text)), nullable("c", arrow.LargeListOfField(nullable("element", text))),
			nullable("d", arrow.FixedSizeListOfField(1, nullable("element", text))), nullable("e", m),
			nullable("f", arrow.StructOf(nullable("x", text), nullable("y", arrow.PrimitiveTypes.Int8))),
		}, nil)
	}
	plain := table(arrow.BinaryTypes.String)
	coded := table(&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.BinaryTypes.String})
	const rows = `[{"a":"x","b":["p","q"],"c":["z"],"d":["u"],"e":[{"key":"k","value":"v"}],"f":{"x":"x","y":1}},
		{"a":null,"b":null,"c":null,"d":null,"e":null,"f":null},
		{"a":"y","b":[null,"p"],"c":[null],"d":[null],"e":[{"key":"k","value":null}],"f":{"x":null,"y":2}},
		{"a":"x","b":[],"c":[],"d":["u"],"e":[],"f":{"x":"x","y":null}}]`
	st := load(t, coded, 0, batchFromJSON(t, coded, rows).NewSlice(1, 4))
	if st.layout.Schema().String() != plain.String() {
		t.Fatalf("schema %v, want %v", st.layout.Schema(), plain)
	}
	equalBatches(t, "range", st.readRange(t, st.layout.All(), 0, 3), batchFromJSON(t, plain, rows).NewSlice(1, 4))
	mixed := load(t, plain, 0, batchFromJSON(t, coded, rows), batchFromJSON(t, plain, rows))
	if mixed.rows.Len() != 8 {
		t.Errorf("coded and plain batches: %d rows", mixed.rows.Len())
	}
}
