// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package icetest makes Iceberg tables for tests, with the rows that they must contain.
//
// A Warehouse makes tables in a directory or in a bucket of an s3test.Server; iceberg-go writes them. The expected rows, in JSON, are
// derived from what was written, and never from reading the table back.
package icetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	ice "github.com/apache/iceberg-go"
	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/kubeflow/datacache/test/kit/s3test"
)

// Warehouse makes tables. It belongs to one test.
type Warehouse struct {
	tb      testing.TB
	storage storage
	root    string
}

// Local returns a warehouse in a directory that is removed at the end of the test.
func Local(tb testing.TB) *Warehouse {
	return &Warehouse{tb: tb, storage: local{}, root: tb.TempDir()}
}

// In returns a warehouse in a directory.
func In(tb testing.TB, dir string) *Warehouse {
	return &Warehouse{tb: tb, storage: local{}, root: dir}
}

// OnS3 returns a warehouse in a bucket.
func OnS3(tb testing.TB, server *s3test.Server, bucket string) *Warehouse {
	return &Warehouse{tb: tb, storage: onS3{server}, root: "s3://" + bucket}
}

// Row is a row in its JSON form, by column name. Absent columns are null.
type Row map[string]any

// Table is a table and the rows that it must contain. Its methods fail the test on errors. It is not safe for concurrent use.
type Table struct {
	tb      testing.TB
	catalog *catalog
	table   *table.Table
	rows    []Row
}

// Option configures the creation of a table.
type Option func(*created)

type created struct {
	spec  *ice.PartitionSpec
	props ice.Properties
}

// Partitioned sets the table's partition spec.
func Partitioned(fields ...ice.PartitionField) Option {
	spec := ice.NewPartitionSpec(fields...)
	return func(c *created) { c.spec = &spec }
}

// Property sets a table property.
func Property(key, value string) Option {
	return func(c *created) { c.props[key] = value }
}

// RowGroup sets the maximum number of rows in a row group.
func RowGroup(rows int) Option {
	return Property(table.ParquetRowGroupLimitKey, fmt.Sprint(rows))
}

// Create makes an empty table without a snapshot. version is the table format version.
func (w *Warehouse) Create(name string, version int, schema *ice.Schema, options ...Option) *Table {
	w.tb.Helper()
	c := created{spec: ice.UnpartitionedSpec, props: ice.Properties{
		"format-version":                  fmt.Sprint(version),
		"write.delete.mode":               "merge-on-read",
		"write.parquet.compression-codec": "zstd",
	}}
	for _, set := range options {
		set(&c)
	}
	location := w.root + "/" + name
	if !strings.Contains(w.root, "://") {
		location = path.Join(w.root, name)
	}
	id := uuid.NewSHA1(uuid.NameSpaceURL, []byte(location))
	meta, err := table.NewMetadataWithUUID(schema, c.spec, table.UnsortedSortOrder, location, c.props, id)
	if err != nil {
		w.tb.Fatalf("create table %s: %v", name, err)
	}
	cat := &catalog{io: fileIO{w.storage}}
	if err := cat.store(meta); err != nil {
		w.tb.Fatalf("create table %s: %v", name, err)
	}
	t := &Table{tb: w.tb, catalog: cat}
	t.reload()
	return t
}

// reload reads the table after a commit.
func (t *Table) reload() {
	t.tb.Helper()
	loaded, err := t.catalog.LoadTable(t.tb.Context(), nil)
	t.check("load", err)
	t.table = loaded
}

func (t *Table) check(what string, err error) {
	t.tb.Helper()
	if err != nil {
		t.tb.Fatalf("icetest: %s: %v", what, err)
	}
}

// Metadata is the location of the table's current metadata file.
func (t *Table) Metadata() string { return t.catalog.location }

// Iceberg returns the table as an iceberg-go object.
func (t *Table) Iceberg() *table.Table { return t.table }

// Rows returns the expected rows, in the format of JSON.
func (t *Table) Rows() []string { return t.RowsOf(nil) }

// RowsOf returns Rows with only the named columns, all if none is named, in the table's order.
func (t *Table) RowsOf(columns []string) []string {
	t.tb.Helper()
	return t.encode(t.rows, columns)
}

// Where returns the rows for which keep is true.
func (t *Table) Where(keep func(Row) bool) []string {
	t.tb.Helper()
	kept := slices.DeleteFunc(slices.Clone(t.rows), func(r Row) bool { return !keep(r) })
	return t.encode(kept, nil)
}

// Len is the expected number of rows.
func (t *Table) Len() int { return len(t.rows) }

func (t *Table) encode(rows []Row, columns []string) []string {
	t.tb.Helper()
	fields := t.table.Schema().Fields()
	if columns != nil {
		fields = slices.DeleteFunc(fields, func(f ice.NestedField) bool { return !slices.Contains(columns, f.Name) })
	}
	schema, err := table.SchemaToArrowSchema(ice.NewSchema(0, fields...), nil, false, false)
	t.check("schema", err)
	kept := make([]Row, len(rows))
	for i, r := range rows {
		kept[i] = Row{}
		for _, f := range fields {
			kept[i][f.Name] = r[f.Name]
		}
	}
	rec := t.record(kept, schema)
	defer rec.Release()
	return JSON(t.tb, rec)
}

// record makes a batch of rows.
func (t *Table) record(rows []Row, schema *arrow.Schema) arrow.RecordBatch {
	t.tb.Helper()
	text, err := json.Marshal(append([]Row{}, rows...))
	t.check("rows as JSON", err)
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema, bytes.NewReader(text))
	t.check("rows as Arrow", err)
	return rec
}

// JSON returns the rows of batches as sorted JSON: the same for the same multiset of rows, however it is divided into batches.
func JSON(tb testing.TB, batches ...arrow.RecordBatch) []string {
	tb.Helper()
	var out []string
	for _, rec := range batches {
		text, err := rec.MarshalJSON()
		if err != nil {
			tb.Fatalf("icetest: rows as JSON: %v", err)
		}
		var rows []json.RawMessage
		if err := json.Unmarshal(text, &rows); err != nil {
			tb.Fatalf("icetest: rows as JSON: %v", err)
		}
		for _, r := range rows {
			out = append(out, string(r))
		}
	}
	slices.Sort(out)
	return out
}

// catalog is a catalog of one table that stores the current metadata.
type catalog struct {
	io       fileIO
	meta     table.Metadata
	location string
	version  int
}

var _ table.CatalogIO = (*catalog)(nil)

// LoadTable returns the table, whatever its name.
func (c *catalog) LoadTable(context.Context, table.Identifier) (*table.Table, error) {
	open := func(context.Context) (iceio.IO, error) { return c.io, nil }
	return table.New(table.Identifier{"icetest", "table"}, c.meta, c.location, open, c), nil
}

// CommitTable applies a commit.
func (c *catalog) CommitTable(_ context.Context, _ table.Identifier, reqs []table.Requirement, updates []table.Update) (table.Metadata, string, error) {
	for _, r := range reqs {
		if err := r.Validate(c.meta); err != nil {
			return nil, "", err
		}
	}
	if err := c.apply(updates...); err != nil {
		return nil, "", err
	}
	return c.meta, c.location, nil
}

func (c *catalog) apply(updates ...table.Update) error {
	meta, err := table.UpdateTableMetadata(c.meta, updates, c.location)
	if err != nil {
		return err
	}
	return c.store(meta)
}

// store writes a metadata file, with a name as pyiceberg would choose it.
func (c *catalog) store(meta table.Metadata) error {
	text, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	id := uuid.NewSHA1(uuid.NameSpaceURL, text)
	c.location = fmt.Sprintf("%s/metadata/%05d-%s.metadata.json", meta.Location(), c.version, id)
	c.version++
	if err := c.io.write(c.location, text); err != nil {
		return err
	}
	// Parse it as a reader does: iceberg-go's metadata in memory can differ.
	c.meta, err = table.ParseMetadataBytes(text)
	return err
}
