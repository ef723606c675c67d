// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package icetest

import (
	"encoding/json"
	"iter"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

// Snapshot is a state of a table.
type Snapshot struct {
	ID   int64
	Time time.Time // time of its commit
	Rows []string  // expected rows, with the schema of that time
}

// Append adds rows in one commit: one data file, or one per partition.
func (t *Table) Append(rows ...Row) {
	t.tb.Helper()
	rec := t.record(rows, t.ArrowSchema())
	defer rec.Release()
	t.AppendRecord(rec)
	t.rows = append(t.rows, rows...)
}

// AppendRecord adds rows in one commit. The table's expected rows don't include them.
func (t *Table) AppendRecord(rec arrow.RecordBatch) {
	t.tb.Helper()
	reader, err := array.NewRecordReader(rec.Schema(), []arrow.RecordBatch{rec})
	t.check("append", err)
	defer reader.Release()
	t.pause()
	_, err = t.table.Append(t.tb.Context(), reader, nil)
	t.check("append", err)
	t.reload()
}

// pause waits until the clock has advanced, so that two snapshots never have the same time.
func (t *Table) pause() {
	if s := t.table.CurrentSnapshot(); s != nil {
		for time.Now().UnixMilli() <= s.TimestampMs {
			time.Sleep(time.Millisecond) //nolint:forbidigo // the unit of the clock
		}
	}
}

// ArrowSchema is the schema of records for AppendRecord.
func (t *Table) ArrowSchema() *arrow.Schema {
	t.tb.Helper()
	schema, err := table.SchemaToArrowSchema(t.table.Schema(), nil, false, false)
	t.check("schema", err)
	return schema
}

// Delete removes the rows for which filter, and equivalently gone, is true: with positional delete files or, in format v3, with
// deletion vectors.
func (t *Table) Delete(filter ice.BooleanExpression, gone func(Row) bool) {
	t.tb.Helper()
	t.pause()
	_, err := t.table.Delete(t.tb.Context(), filter, nil)
	t.check("delete", err)
	t.rows = slices.DeleteFunc(t.rows, gone)
	t.reload()
}

// DeleteEqual removes the rows whose columns equal those of any of rows, with an equality delete file. Rows appended later are not
// affected. columns are top-level names.
func (t *Table) DeleteEqual(columns []string, rows ...Row) {
	t.tb.Helper()
	var ids []int
	var fields []ice.NestedField
	for _, name := range columns {
		f, ok := t.table.Schema().FindFieldByName(name)
		if !ok {
			t.tb.Fatalf("icetest: delete: no column %q", name)
		}
		ids, fields = append(ids, f.ID), append(fields, f)
	}
	schema, err := table.SchemaToArrowSchema(ice.NewSchema(0, fields...), nil, true, false)
	t.check("delete", err)
	rec := t.record(rows, schema)
	defer rec.Release()
	t.pause()
	tx := t.table.NewTransaction()
	t.check("delete", tx.CommitEqualityDeletes(t.tb.Context(), ids, one(rec), nil))
	_, err = tx.Commit(t.tb.Context())
	t.check("delete", err)
	t.rows = slices.DeleteFunc(t.rows, func(r Row) bool {
		return slices.ContainsFunc(rows, func(gone Row) bool { return t.equal(columns, r, gone) })
	})
	t.reload()
}

// equal compares columns of two rows in their JSON form.
func (t *Table) equal(columns []string, a, b Row) bool {
	for _, c := range columns {
		x, err := json.Marshal(a[c])
		t.check("compare", err)
		y, err := json.Marshal(b[c])
		t.check("compare", err)
		if string(x) != string(y) {
			return false
		}
	}
	return true
}

func one(rec arrow.RecordBatch) iter.Seq2[arrow.RecordBatch, error] {
	return func(yield func(arrow.RecordBatch, error) bool) { yield(rec, nil) }
}

// Evolve changes the schema; row converts every existing row.
func (t *Table) Evolve(change func(*table.UpdateSchema), row func(Row)) {
	t.tb.Helper()
	tx := t.table.NewTransaction()
	u := tx.UpdateSchema(true, true)
	change(u)
	t.check("evolve", u.Commit())
	_, err := tx.Commit(t.tb.Context())
	t.check("evolve", err)
	for _, r := range t.rows {
		row(r)
	}
	t.reload()
}

// Repartition changes the partition spec for later rows.
func (t *Table) Repartition(change func(*table.UpdateSpec)) {
	t.tb.Helper()
	tx := t.table.NewTransaction()
	u := tx.UpdateSpec(true)
	change(u)
	t.check("repartition", u.Commit())
	_, err := tx.Commit(t.tb.Context())
	t.check("repartition", err)
	t.reload()
}

// Snapshot returns the current state of the table.
func (t *Table) Snapshot() Snapshot {
	t.tb.Helper()
	s := t.table.CurrentSnapshot() // nil, and so a panic, if the table has none
	return Snapshot{ID: s.SnapshotID, Time: time.UnixMilli(s.TimestampMs), Rows: t.Rows()}
}

// Tag names a snapshot.
func (t *Table) Tag(name string, snapshot int64) {
	t.tb.Helper()
	t.check("tag", t.catalog.apply(table.NewSetSnapshotRefUpdate(name, snapshot, table.TagRef, 0, 0, 0)))
	t.reload()
}

// Branch starts a branch at a snapshot.
func (t *Table) Branch(name string, snapshot int64) {
	t.tb.Helper()
	t.check("branch", t.catalog.apply(table.NewSetSnapshotRefUpdate(name, snapshot, table.BranchRef, 0, 0, 0)))
	t.reload()
}

// AddFile adds a Parquet file that another program wrote; rows are its content.
func (t *Table) AddFile(uri string, data []byte, rows ...Row) {
	t.tb.Helper()
	t.check("write", t.catalog.io.write(uri, data))
	t.pause()
	tx := t.table.NewTransaction()
	t.check("add file", tx.AddFiles(t.tb.Context(), []string{uri}, nil, false))
	_, err := tx.Commit(t.tb.Context())
	t.check("add file", err)
	t.rows = append(t.rows, rows...)
	t.reload()
}
