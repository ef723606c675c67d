// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/s3test"
)

const bucketName = "lake"

// lake holds the objects of all versions of a table. It is immutable once it is made.
type lake struct {
	name     string
	objects  map[string][]byte
	versions []version         // starting with version 1
	forged   map[string][]byte // data files of the same length with other rows, by the key of the real one
}

// version is a state of the table: its rows, in row order.
type version struct {
	snapshot int64
	rows     []row
}

// row identifies a row's values. A row that was rewritten has the same id and another revision.
type row struct{ id, revision int }

func (r row) text() string { return fmt.Sprintf("text of row %06d, revision %d", r.id, r.revision) }

func (r row) values() icetest.Row {
	values := icetest.PlainRows(r.id, r.id+1)[0]
	values["text"] = r.text()
	return values
}

func metadataOf(version int) string { return fmt.Sprintf("t/metadata/v%d.metadata.json", version) }

// writer makes a lake.
type writer struct {
	t     *testing.T
	s3    *s3test.Server
	table *icetest.Table
	lake  *lake
	rows  []row

	next     int // id
	revision int
}

func newWriter(t *testing.T, name string, format, group int, options ...icetest.Option) *writer {
	t.Helper()
	w := &writer{t: t, s3: s3test.Start(t), lake: &lake{name: name, objects: map[string][]byte{}}}
	w.s3.Bucket(bucketName)
	w.table = icetest.OnS3(t, w.s3, bucketName).Create("t", format, icetest.PlainSchema(), append(options, icetest.RowGroup(group))...)
	return w
}

// add appends rows as one data file.
func (w *writer) add(rows ...row) {
	values := make([]icetest.Row, len(rows))
	for i, r := range rows {
		values[i] = r.values()
	}
	w.table.Append(values...)
	w.rows = append(w.rows, rows...)
}

// grow appends n new rows of the writer's revision.
func (w *writer) grow(n int) {
	rows := make([]row, n)
	for i := range rows {
		rows[i] = row{w.next, w.revision}
		w.next++
	}
	w.add(rows...)
}

// remove deletes rows with ids in [lo, hi), with positional deletes or deletion vectors.
func (w *writer) remove(lo, hi int) {
	id := ice.Reference("id")
	gone := func(n int) bool { return lo <= n && n < hi }
	w.table.Delete(ice.NewAnd(ice.GreaterThanEqual(id, int64(lo)), ice.LessThan(id, int64(hi))), func(r icetest.Row) bool { return gone(r["id"].(int)) })
	w.rows = slices.DeleteFunc(slices.Clone(w.rows), func(r row) bool { return gone(r.id) })
}

// rewrite replaces rows with ids in [lo, hi): with an equality delete and the rows' next revision.
func (w *writer) rewrite(lo, hi int) {
	var gone []icetest.Row
	var again []row
	w.rows = slices.DeleteFunc(slices.Clone(w.rows), func(r row) bool {
		if r.id < lo || r.id >= hi {
			return false
		}
		gone = append(gone, icetest.Row{"id": r.id})
		again = append(again, row{r.id, r.revision + 1})
		return true
	})
	w.table.DeleteEqual([]string{"id"}, gone...)
	w.add(again...)
}

// publish adds the current table to the lake as its next version.
func (w *writer) publish() {
	w.t.Helper()
	_, key, _ := strings.Cut(w.table.Metadata(), bucketName+"/")
	snapshot := w.table.Snapshot()
	if len(snapshot.Rows) != len(w.rows) {
		w.t.Fatalf("lake %s has %d rows, its truth %d", w.lake.name, len(snapshot.Rows), len(w.rows))
	}
	w.lake.versions = append(w.lake.versions, version{snapshot.ID, slices.Clone(w.rows)})
	w.lake.objects[metadataOf(len(w.lake.versions))] = w.s3.Get(bucketName, key)
}

func (w *writer) done() *lake {
	for _, key := range w.s3.Objects(bucketName) {
		w.lake.objects[key] = w.s3.Get(bucketName, key)
	}
	return w.lake
}

// lakes makes the tables from which schedules choose.
func lakes(t *testing.T) []*lake {
	t.Helper()
	plain := newWriter(t, "appended to", 2, 16)
	for range 4 {
		plain.grow(48)
	}
	plain.publish()
	for range 3 {
		plain.grow(32)
		plain.publish()
	}
	return []*lake{
		plain.done(), removed(t, "with position deletes", 2), removed(t, "with deletion vectors", 3), rewritten(t), small(t), forged(t),
	}
}

func removed(t *testing.T, name string, format int) *lake {
	w := newWriter(t, name, format, 10)
	w.grow(40)
	w.grow(40)
	w.remove(5, 15)
	w.publish()
	w.grow(40)
	w.remove(70, 90)
	w.publish()
	w.remove(0, 40)
	w.publish()
	return w.done()
}

func rewritten(t *testing.T) *lake {
	w := newWriter(t, "with equality deletes", 2, 10)
	w.grow(40)
	w.grow(40)
	w.rewrite(30, 50)
	w.rewrite(25, 35) // the file's second delete
	w.publish()
	w.rewrite(20, 45)
	w.publish()
	w.grow(10)
	w.rewrite(0, 3)
	w.publish()
	return w.done()
}

func small(t *testing.T) *lake {
	w := newWriter(t, "of few rows", 2, 10)
	w.grow(1)
	w.publish()
	w.grow(2)
	w.publish()
	return w.done()
}

// forged makes a table for which there are forged data files with the same names, lengths and entity tags.
func forged(t *testing.T) *lake {
	build := func(revision int) (l *lake, files []string) {
		w := newWriter(t, "that is tampered with", 2, 10, icetest.Property("write.parquet.compression-codec", "uncompressed"))
		w.revision = revision
		for range 3 {
			before := w.s3.Objects(bucketName)
			w.grow(40)
			files = append(files, slices.DeleteFunc(w.s3.Objects(bucketName), func(key string) bool {
				return slices.Contains(before, key) || !strings.HasSuffix(key, ".parquet")
			})...)
		}
		w.publish()
		return w.done(), files
	}
	l, files := build(0)
	other, others := build(1)
	l.forged = map[string][]byte{}
	for i, key := range files {
		l.forged[key] = other.objects[others[i]]
		if len(l.forged[key]) != len(l.objects[key]) {
			t.Fatalf("forged file %d has %d bytes, want %d", i, len(l.forged[key]), len(l.objects[key]))
		}
	}
	return l
}
