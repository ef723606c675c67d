// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/test/kit/parquettest"
)

// madeTable is a table that a test writes by the protocol.
type madeTable struct {
	t    *testing.T
	at   string // its folder
	next int    // the next version
}

// object is a JSON object.
type object map[string]any

func makeTable(t *testing.T) *madeTable {
	m := &madeTable{t: t, at: t.TempDir()}
	if err := os.MkdirAll(filepath.Join(m.at, logFolder, "_sidecars"), 0o750); err != nil {
		t.Fatal(err)
	}
	return m
}

// write writes a file in the table's folder.
func (m *madeTable) write(name string, data []byte) {
	m.t.Helper()
	at := filepath.Join(m.at, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(at), 0o750); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(at, data, 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// parquet writes a Parquet file of rows in the form of Arrow's JSON and returns its size.
func (m *madeTable) parquet(name string, fields []arrow.Field, rows string) int {
	m.t.Helper()
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, arrow.NewSchema(fields, nil), strings.NewReader(rows))
	if err != nil {
		m.t.Fatal(err)
	}
	defer rec.Release()
	data := parquettest.Write(m.t, rec, parquet.NewWriterProperties(), pqarrow.DefaultWriterProps())
	m.write(name, data)
	return len(data)
}

var ids = []arrow.Field{nullable("id", longType)}

// add writes a file with the ids from first to last and returns the action that adds it at a time.
func (m *madeTable) add(name string, at, first, last int) object {
	m.t.Helper()
	var rows []string
	for id := first; id <= last; id++ {
		rows = append(rows, fmt.Sprintf(`{"id":%d}`, id))
	}
	size := m.parquet(name, ids, "["+strings.Join(rows, ",")+"]")
	return object{"add": object{
		"path": name, "partitionValues": object{}, "size": size, "modificationTime": at, "dataChange": true, "stats": fmt.Sprintf(`{"numRecords":%d}`, last-first+1),
	}}
}

func remove(name string) object { return object{"remove": object{"path": name, "dataChange": true}} }

// with returns an action with another field.
func with(a object, field string, value any) object {
	for _, of := range a {
		of.(object)[field] = value
	}
	return a
}

// lines are actions as JSON lines.
func (m *madeTable) lines(actions ...object) []byte {
	var out []byte
	for _, a := range actions {
		line, err := json.Marshal(a)
		if err != nil {
			m.t.Fatal(err)
		}
		out = append(append(out, line...), '\n')
	}
	return out
}

// commit commits a version.
func (m *madeTable) commit(actions ...object) {
	m.t.Helper()
	m.write(fmt.Sprintf("%s/%020d.json", logFolder, m.next), m.lines(actions...))
	m.next++
}

// commitFile is the name of a commit.
func (m *madeTable) commitFile(version int) string {
	return filepath.Join(m.at, logFolder, fmt.Sprintf("%020d.json", version))
}

func protocolOf(reader int, features ...string) object {
	of := object{"minReaderVersion": reader, "minWriterVersion": 7}
	if reader == 3 {
		of["readerFeatures"], of["writerFeatures"] = features, features
	}
	return object{"protocol": of}
}

// metaOf describes a table with fields in the form of Delta's JSON.
func metaOf(fields string, configuration map[string]string, partitions ...string) object {
	if partitions == nil {
		partitions = []string{}
	}
	return object{"metaData": object{
		"id": "5fba94ed-9794-4965-ba6e-6ee3c0d22af9", "format": object{"provider": "parquet", "options": object{}},
		"schemaString": `{"type":"struct","fields":[` + fields + `]}`, "partitionColumns": partitions, "configuration": configuration,
	}}
}

const idField = `{"name":"id","type":"long","nullable":true,"metadata":{}}`

// source returns the table's latest version.
func (m *madeTable) source() *Source {
	return &Source{Store: objstore.New(objstore.Config{}), URI: m.at}
}

// read returns the rows of a source in JSON, a line each, as a data node reads them from the head's plan.
func read(t *testing.T, s *Source) (string, error) {
	t.Helper()
	plan, err := s.Plan(t.Context(), nil, nil)
	if err != nil {
		return "", err
	}
	again, err := s.Plan(t.Context(), plan.Version.Pin, nil)
	if err != nil || len(again.Splits) != len(plan.Splits) || again.Identity.Snapshot != plan.Identity.Snapshot {
		t.Errorf("the pinned version was planned as %+v: %v", again, err)
	}
	restored, err := s.Restore(plan.Version.Pin)
	if err != nil || restored.Identity.UUID != plan.Identity.UUID {
		t.Errorf("restored %+v: %v", restored, err)
	}
	node := &Source{Store: s.Store}
	opened, err := node.Open(t.Context(), plan.Version, &source.Buffers{})
	if err != nil {
		return "", err
	}
	var rows strings.Builder
	for _, split := range plan.Splits {
		if err := readSplit(t, opened, split, &rows); err != nil {
			return "", err
		}
	}
	return rows.String(), nil
}

func readSplit(t *testing.T, of source.Dataset, split source.Split, rows *strings.Builder) error {
	f, err := of.Fetch(t.Context(), split, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for batch, err := range f.Batches(t.Context(), nil) {
		if err != nil {
			return err
		}
		for i := range int(batch.NumRows()) {
			if batch.Keep != nil && batch.Keep[i/8]>>(i%8)&1 == 0 {
				continue
			}
			one := batch.NewSlice(int64(i), int64(i)+1)
			if err := array.RecordToJSON(one, rows); err != nil {
				return err
			}
			one.Release()
		}
		batch.Release()
	}
	return nil
}

// rowsOf returns rows in the form of read: the ids of a table without other columns.
func rowsOf(ids ...int) string {
	var out strings.Builder
	for _, id := range ids {
		fmt.Fprintf(&out, "{\"id\":%d}\n", id)
	}
	return out.String()
}

func (m *madeTable) want(s *Source, rows string) {
	m.t.Helper()
	got, err := read(m.t, s)
	if err != nil || got != rows {
		m.t.Errorf("rows %s\nwant %s\nerror %v", got, rows, err)
	}
}

// versionOf selects a version.
func (m *madeTable) versionOf(version int64) *Source {
	s := m.source()
	s.Selection.Version = &version
	return s
}

func (m *madeTable) asOf(at time.Time) *Source {
	s := m.source()
	s.Selection.AsOf = &at
	return s
}

// threeVersions has ids 1 and 2 in version 0, 3 as well in version 1, and without 1 and 2 in version 2.
func threeVersions(t *testing.T) *madeTable {
	m := makeTable(t)
	m.commit(protocolOf(1), metaOf(idField, nil), m.add("b.parquet", 1, 1, 2))
	m.commit(m.add("a.parquet", 2, 3, 3))
	m.commit(remove("b.parquet"))
	return m
}
