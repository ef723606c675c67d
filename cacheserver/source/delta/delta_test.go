// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go/table/dv"

	"github.com/kubeflow/datacache/cacheserver/source"
)

func TestVersions(t *testing.T) {
	m := threeVersions(t)
	m.want(m.source(), rowsOf(3))
	m.want(m.versionOf(0), rowsOf(1, 2))
	m.want(m.versionOf(1), rowsOf(1, 2, 3)) // in the order of time, not of names
	pinned := m.source()
	pinned.Pinned = new(int64(0))
	m.want(pinned, rowsOf(1, 2))
}

func TestTimes(t *testing.T) {
	m := threeVersions(t)
	day := func(n int) time.Time { return time.Date(2026, 1, n, 12, 0, 0, 0, time.UTC) }
	for version, at := range []int{1, 5, 3} { // the last commit was copied with an earlier time than the one before
		if err := os.Chtimes(m.commitFile(version), day(at), day(at)); err != nil {
			t.Fatal(err)
		}
	}
	m.want(m.asOf(day(1)), rowsOf(1, 2))
	m.want(m.asOf(day(4)), rowsOf(1, 2))
	m.want(m.asOf(day(5)), rowsOf(3))
	m.want(m.asOf(day(30)), rowsOf(3))
	// A commit is not earlier than the one before, whatever its file says.
	for version, at := range []int{2, 1} {
		if err := os.Chtimes(m.commitFile(version), day(at), day(at)); err != nil {
			t.Fatal(err)
		}
	}
	m.fails(m.asOf(day(1)), "version 0, the first one")
	if err := os.Chtimes(m.commitFile(0), day(1), day(1)); err != nil {
		t.Fatal(err)
	}
	m.fails(m.asOf(day(1).Add(-time.Nanosecond)), "version 0, the first one that its log has, is of 2026-01-01T12:00:00Z")
}

func TestRecordedTimes(t *testing.T) {
	m := makeTable(t)
	info := func(at int64) object { return object{"commitInfo": object{"inCommitTimestamp": at}} }
	property := map[string]string{"delta.enableInCommitTimestamps": "true", "delta.inCommitTimestampEnablementVersion": "1", "delta.inCommitTimestampEnablementTimestamp": "2000000000000"}
	m.commit(protocolOf(1), metaOf(idField, nil), m.add("0.parquet", 1, 0, 0))
	m.commit(info(2_000_000_000_000), metaOf(idField, property), m.add("1.parquet", 1, 1, 1)) // in 2033
	m.commit(info(2_000_000_000_001), m.add("2.parquet", 1, 2, 2))
	m.want(m.asOf(time.UnixMilli(1_999_999_999_999)), rowsOf(0))
	m.want(m.asOf(time.UnixMilli(2_000_000_000_000)), rowsOf(0, 1))
	m.want(m.asOf(time.UnixMilli(2_000_000_000_001)), rowsOf(0, 1, 2))
	m.commit(m.add("3.parquet", 1, 3, 3))
	m.fails(m.asOf(time.UnixMilli(2_000_000_000_001)), "commit 3", "inCommitTimestamp")
}

// TestPartitions reads values of each type from the log, also null and escaped ones, and the files that a filter on them leaves.
func TestPartitions(t *testing.T) {
	m := makeTable(t)
	types := []string{"string", "byte", "integer", "long", "double", "boolean", "date", "timestamp", "timestamp_ntz", "decimal(5,2)"}
	texts := []string{"a b", "-7", "12", "99", "1.5E3", "true", "2026-01-31", "2026-01-31 00:00:01.5", "2026-01-31 00:00:01.5", "-1.50"}
	fields, values, nulls := []string{idField}, object{}, object{}
	var names []string
	for i, of := range types {
		name := fmt.Sprintf("p%d", i)
		names = append(names, name)
		fields = append(fields, fmt.Sprintf(`{"name":%q,"type":%q,"nullable":true,"metadata":{}}`, name, of))
		values[name], nulls[name] = texts[i], nil
	}
	nulls["p0"] = "" // also stands for null
	m.commit(protocolOf(3, "timestampNtz"), metaOf(strings.Join(fields, ","), nil, names...),
		with(with(m.add("p0=a b/x.parquet", 1, 1, 1), "partitionValues", values), "path", "p0=a%20b/x.parquet"),
		with(m.add("y.parquet", 2, 2, 2), "partitionValues", nulls))
	first := `{"id":1,"p0":"a b","p1":-7,"p2":12,"p3":99,"p4":1500,"p5":true,"p6":"2026-01-31","p7":"2026-01-31T00:00:01.5Z","p8":"2026-01-31T00:00:01.5","p9":"-1.5"}`
	second := `{"id":2,"p0":null,"p1":null,"p2":null,"p3":null,"p4":null,"p5":null,"p6":null,"p7":null,"p8":null,"p9":null}`
	m.want(m.source(), first+"\n"+second+"\n")
	filtered := m.source()
	filtered.Selection.Filter, filtered.Selection.Columns = "p6 > DATE '2026-01-01' AND id > 0", []string{"p0"}
	m.want(filtered, `{"p0":"a b"}`+"\n")
	if err := os.Remove(filepath.Join(m.at, "y.parquet")); err != nil {
		t.Fatal(err)
	}
	m.want(filtered, `{"p0":"a b"}`+"\n") // the other file is not even opened
}

func TestSchemaChanges(t *testing.T) {
	m := makeTable(t)
	m.commit(protocolOf(1), metaOf(idField, nil), m.add("0.parquet", 1, 1, 1))
	nested := `{"name":"s","type":{"type":"struct","fields":[{"name":"l","type":{"type":"array","elementType":"integer","containsNull":true},"nullable":true,"metadata":{}}]},"nullable":true,"metadata":{}}`
	mapped := `{"name":"m","type":{"type":"map","keyType":"string","valueType":"double","valueContainsNull":true},"nullable":true,"metadata":{}}`
	void := `{"name":"v","type":"void","nullable":true,"metadata":{}}`
	m.commit(metaOf(strings.Join([]string{nested, mapped, idField, void}, ","), nil))
	list := arrow.ListOfField(nullable("element", arrow.PrimitiveTypes.Int32))
	columns := []arrow.Field{nullable("id", longType), nullable("m", arrow.MapOf(textType, arrow.PrimitiveTypes.Float64)), nullable("s", arrow.StructOf(nullable("l", list)))}
	size := m.parquet("1.parquet", columns, `[{"id":2,"m":[{"key":"k","value":0.5}],"s":{"l":[1,null]}}]`)
	m.commit(object{"add": object{"path": "1.parquet", "size": size, "modificationTime": 2, "partitionValues": object{}}})
	m.want(m.source(), `{"id":1,"m":null,"s":null,"v":null}`+"\n"+`{"id":2,"m":[{"key":"k","value":0.5}],"s":{"l":[1,null]},"v":null}`+"\n")
	m.want(m.versionOf(0), rowsOf(1))
}

// TestNamesInAnotherCase reads columns that files write in letters of another case, as Spark does, and a table with a feature that no column uses.
func TestNamesInAnotherCase(t *testing.T) {
	m := makeTable(t)
	field := strings.Replace(idField, `"id"`, `"ID"`, 1)
	m.commit(protocolOf(3, "deletionVectors", "variantType"), metaOf(field, nil), m.add("0.parquet", 1, 1, 2))
	m.want(m.source(), `{"ID":1}`+"\n"+`{"ID":2}`+"\n")

	both := makeTable(t)
	columns := []arrow.Field{nullable("Id", longType), nullable("ID", longType)}
	size := both.parquet("0.parquet", columns, `[{"Id":1,"ID":2}]`)
	both.commit(protocolOf(1), metaOf(field, nil), object{"add": object{"path": "0.parquet", "size": size, "modificationTime": 2, "partitionValues": object{}}})
	both.want(both.source(), `{"ID":2}`+"\n")
}

// TestColumnMapping reads columns by physical names, and by ids, after one was renamed and one dropped and added again.
func TestColumnMapping(t *testing.T) {
	field := func(name, physical string, id int) string {
		return fmt.Sprintf(`{"name":%q,"type":"long","nullable":true,"metadata":{"delta.columnMapping.id":%d,"delta.columnMapping.physicalName":%q}}`, name, id, physical)
	}
	inFile := func(name, id string) arrow.Field {
		return arrow.Field{Name: name, Type: longType, Nullable: true, Metadata: arrow.MetadataFrom(map[string]string{"PARQUET:field_id": id})}
	}
	for _, mode := range []string{"name", "id"} {
		for _, protocol := range []object{protocolOf(2), protocolOf(3, "columnMapping")} {
			m := makeTable(t)
			fields := []string{field("renamed", "c1", 1), field("again", "c3", 3), field("part", "c4", 4)}
			names := []string{"c1", "c2"}
			if mode == "id" {
				names = []string{"other", "c3"} // only ids count
			}
			size := m.parquet("0.parquet", []arrow.Field{inFile(names[0], "1"), inFile(names[1], "2")}, fmt.Sprintf(`[{%q:7,%q:8}]`, names[0], names[1]))
			m.commit(protocol, metaOf(strings.Join(fields, ","), map[string]string{"delta.columnMapping.mode": mode}, "part"),
				object{"add": object{"path": "0.parquet", "size": size, "modificationTime": 1, "partitionValues": object{"c4": "9"}}})
			filtered := m.source()
			filtered.Selection.Filter = "renamed = 7 AND part = 9 AND again IS NULL"
			m.want(filtered, `{"again":null,"part":9,"renamed":7}`+"\n")
		}
	}
	m := makeTable(t)
	m.commit(protocolOf(2), metaOf(field("id", "id", 1), map[string]string{"delta.columnMapping.mode": "id"}), m.add("0.parquet", 1, 1, 1))
	m.fails(m.source(), "0.parquet", "no field ids")
}

// deleting returns a vector of rows as a file has it.
func deleting(t *testing.T, rows ...uint64) []byte {
	t.Helper()
	bits := dv.NewRoaringPositionBitmap()
	for _, row := range rows {
		bits.Set(row)
	}
	blob, err := dv.SerializeDV(bits)
	if err != nil {
		t.Fatal(err)
	}
	return blob
}

func TestDeletionVectors(t *testing.T) {
	m := makeTable(t)
	// Two vectors of one file: after a byte with the version, each with its length and checksum.
	one, two := deleting(t, 0), deleting(t, 1, 2)
	m.write("ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin", append(append([]byte{1}, one...), two...))
	stored := func(kind, path string, offset, size, n int) object {
		return object{"storageType": kind, "pathOrInlineDv": path, "offset": offset, "sizeInBytes": size, "cardinality": n}
	}
	const encoded = "ab^-aqEH.-t@S}K{vb[*k^" // the folder ab and the UUID
	first := stored("u", encoded, 1, len(one)-8, 1)
	second := stored("p", "file:"+filepath.ToSlash(m.at)+"/ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin", 1+len(one), len(two)-8, 2)
	inline := object{"storageType": "i", "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", "sizeInBytes": 44, "cardinality": 6} // 3, 4, 7, 11, 18, 29
	m.commit(protocolOf(3, "deletionVectors"), metaOf(idField, nil), m.add("0.parquet", 1, 0, 3))
	m.commit(remove("0.parquet"), with(m.add("0.parquet", 1, 0, 3), "deletionVector", first))
	m.commit(with(remove("0.parquet"), "deletionVector", first), with(m.add("0.parquet", 1, 0, 3), "deletionVector", second))
	m.commit(with(m.add("1.parquet", 2, 0, 31), "deletionVector", inline))
	m.want(m.versionOf(0), rowsOf(0, 1, 2, 3))
	m.want(m.versionOf(1), rowsOf(1, 2, 3))
	m.want(m.versionOf(2), rowsOf(0, 3))
	m.want(m.source(), rowsOf(0, 3, 0, 1, 2, 5, 6, 8, 9, 10, 12, 13, 14, 15, 16, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 30, 31))
	m.counts(m.source(), 8)
	filtered := m.versionOf(2)
	filtered.Selection.Filter = "id >= 2"
	m.want(filtered, rowsOf(3))

	for says, vector := range map[string]object{
		"cardinality":             stored("u", encoded, 1, len(one)-8, 2),
		"no vector of":            stored("u", encoded, 1, 1<<30, 1),
		"storageType":             stored("x", encoded, 1, 40, 1),
		"not in Z85":              stored("u", "ab~-aqEH.-t@S}K{vb[*k^", 1, 40, 1),
		"in Z85":                  {"storageType": "i", "pathOrInlineDv": "abc", "sizeInBytes": 44, "cardinality": 6},
		"deletion_vector_":        stored("u", encoded[2:], 1, 40, 1),
		"leads out of":            stored("u", "../"+encoded[2:], 1, 40, 1),
		"rows that the file, whi": inline,
	} {
		m := makeTable(t)
		m.write("ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin", append([]byte{1}, one...))
		m.commit(protocolOf(3, "deletionVectors"), metaOf(idField, nil), with(m.add("0.parquet", 1, 0, 3), "deletionVector", vector))
		m.fails(m.source(), says, "0.parquet")
	}
}

// counts checks that planning counts deleted rows, also of splits that are cut: as many as decoding leaves out.
func (m *madeTable) counts(s *Source, deleted int64) {
	m.t.Helper()
	cut := func(splits []source.Split) (parts []source.Split) {
		for _, s := range splits {
			parts = append(parts, s.Part(0, 3, 1), s.Part(3, s.Rows-3, 1))
		}
		return parts
	}
	plan, err := s.Plan(m.t.Context(), nil, &source.Planning{Cut: cut})
	if err != nil {
		m.t.Fatal(err)
	}
	opened, err := s.Open(m.t.Context(), plan.Version, &source.Buffers{})
	if err != nil {
		m.t.Fatal(err)
	}
	for _, split := range plan.Splits {
		var rows strings.Builder
		if err := readSplit(m.t, opened, split, &rows); err != nil {
			m.t.Fatal(err)
		}
		if has := int64(strings.Count(rows.String(), "{")); split.Kept() != has {
			m.t.Errorf("rows %d to %d of %s: %d rows are left, %d were counted", split.First, split.End(), split, has, split.Kept())
		}
		deleted -= split.Deleted
	}
	if deleted != 0 {
		m.t.Errorf("%d deleted rows were not counted", deleted)
	}
}

// fails checks that a source can't be read, and that the error says why.
func (m *madeTable) fails(s *Source, says ...string) {
	m.t.Helper()
	_, err := read(m.t, s)
	if err == nil {
		m.t.Errorf("read without an error, want one with %q", says)
		return
	}
	for _, part := range says {
		if !strings.Contains(err.Error(), part) {
			m.t.Errorf("error %v, want %q", err, part)
		}
	}
}

func TestRefuses(t *testing.T) {
	start := func(m *madeTable) []object {
		return []object{protocolOf(1), metaOf(idField, nil), m.add("0.parquet", 1, 0, 0)}
	}
	tests := map[string]struct {
		make func(m *madeTable)
		says []string
	}{
		"a feature": {func(m *madeTable) { m.commit(protocolOf(3, "deletionVectors", "typeWidening"), metaOf(idField, nil)) },
			[]string{"protocol.readerFeatures", `"typeWidening"`, "ALTER TABLE ... DROP FEATURE typeWidening"}},
		"a version of the protocol": {func(m *madeTable) { m.commit(protocolOf(4), metaOf(idField, nil)) }, []string{"protocol.minReaderVersion is 4"}},
		"a mapping": {func(m *madeTable) {
			m.commit(protocolOf(2), metaOf(idField, map[string]string{"delta.columnMapping.mode": "x"}))
		}, []string{"delta.columnMapping.mode", `"x"`}},
		"no protocol": {func(m *madeTable) { m.commit(metaOf(idField, nil)) }, []string{"protocol or metaData"}},
		"a type": {func(m *madeTable) {
			m.commit(protocolOf(1), metaOf(idField+`,{"name":"v","type":"variant","nullable":true,"metadata":{}}`, nil))
		},
			[]string{`"v"`, `"variant"`, "leave the column out"}},
		"a column twice": {func(m *madeTable) { m.commit(protocolOf(1), metaOf(idField+","+idField, nil)) }, []string{`"id"`, "two fields have the name id"}},
		"a field twice": {func(m *madeTable) {
			m.commit(protocolOf(1), metaOf(`{"name":"s","type":{"type":"struct","fields":[`+idField+","+idField+`]},"nullable":true,"metadata":{}}`, nil))
		}, []string{`"s"`, "two fields have the name id"}},
		"a physical name twice": {func(m *madeTable) {
			const a = `{"name":"a","type":"long","nullable":true,"metadata":{"delta.columnMapping.id":1,"delta.columnMapping.physicalName":"x"}}`
			b := strings.NewReplacer(`"a"`, `"b"`, ":1,", ":2,").Replace(a)
			m.commit(protocolOf(2), metaOf(a+","+b, map[string]string{"delta.columnMapping.mode": "name"}))
		}, []string{`"b"`, "two fields have the delta.columnMapping.physicalName x"}},
		"an empty commit":     {func(m *madeTable) { m.commit(start(m)...); m.commit() }, []string{"00000000000000000001.json: it has no actions"}},
		"a commit is missing": {func(m *madeTable) { m.commit(start(m)...); m.next++; m.commit() }, []string{"version 2", "00000000000000000001.json is missing"}},
		"the log was cleaned": {func(m *madeTable) { m.next = 3; m.commit(start(m)...) }, []string{"00000000000000000000.json is missing"}},
		"no commits":          {func(m *madeTable) { m.write(logFolder+"/x.crc", nil) }, []string{"neither commits nor checkpoints"}},
		"no log":              {func(m *madeTable) { m.at += "/nothing" }, []string{"has no folder _delta_log"}},
		"a broken line":       {func(m *madeTable) { m.write(logFolder+"/00000000000000000000.json", []byte("{}\n{\n")) }, []string{"00000000000000000000.json: line 2"}},
		"a path out of it": {func(m *madeTable) {
			m.commit(append(start(m), with(m.add("1.parquet", 1, 1, 1), "path", "../1.parquet"))...)
		},
			[]string{`"../1.parquet" leads out`}},
		"a file that is gone": {func(m *madeTable) {
			m.commit(append(start(m), with(m.add("1.parquet", 1, 1, 1), "path", "2.parquet"))...)
		},
			[]string{"version 0", "2.parquet", "VACUUM"}},
		"another size": {func(m *madeTable) { m.commit(append(start(m), with(m.add("1.parquet", 1, 1, 1), "size", 7))...) }, []string{"1.parquet", "says 7"}},
		"another number of rows": {func(m *madeTable) {
			m.commit(append(start(m), with(m.add("1.parquet", 1, 1, 1), "stats", `{"numRecords":2}`))...)
		},
			[]string{"1.parquet", "1 rows"}},
		"a file twice": {func(m *madeTable) {
			m.commit(protocolOf(3, "deletionVectors"), metaOf(idField, nil), m.add("0.parquet", 1, 0, 0),
				with(m.add("0.parquet", 1, 0, 0), "deletionVector", object{"storageType": "i", "pathOrInlineDv": "x"}))
		}, []string{"0.parquet twice"}},
		"no value of a partition": {func(m *madeTable) { m.commit(protocolOf(1), metaOf(idField, nil, "id"), m.add("0.parquet", 1, 0, 0)) }, []string{"partitionValues", `"id"`}},
		"a bad value of a partition": {func(m *madeTable) {
			m.commit(protocolOf(1), metaOf(idField, nil, "id"), with(m.add("0.parquet", 1, 0, 0), "partitionValues", object{"id": "x"}))
		}, []string{`"x" for column "id"`}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m := makeTable(t)
			tt.make(m)
			m.fails(m.source(), tt.says...)
		})
	}
	m := threeVersions(t)
	m.fails(m.versionOf(3), "version 3", "the latest one is 2")
	both := m.versionOf(0)
	both.Selection.AsOf = &time.Time{}
	m.fails(both, "at most one of version and time")
}

// TestAnotherTable checks that a pin of a table that was replaced by another one is not read.
func TestAnotherTable(t *testing.T) {
	m := threeVersions(t)
	plan, err := m.source().Plan(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	m.next = 0
	m.commit(protocolOf(1), with(metaOf(idField, nil), "id", "another"))
	for _, of := range []func() error{
		func() error { _, err := m.source().Plan(t.Context(), plan.Version.Pin, nil); return err },
		func() error {
			filtered := plan.Version
			filtered.Selection = []byte(`{"filter":"id > 0"}`)
			opened, err := m.source().Open(t.Context(), filtered, &source.Buffers{})
			if err != nil {
				return err
			}
			_, err = opened.Fetch(t.Context(), plan.Splits[0], 0)
			return err
		},
	} {
		if err := of(); err == nil || !strings.Contains(err.Error(), "another table") {
			t.Errorf("error %v", err)
		}
	}
}
