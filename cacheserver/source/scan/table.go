// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scan reads tables of Parquet files, whichever format says which files and rows they have.
//
// A source makes a Table of one version of a dataset, and describes its data files: which columns they have, and which rows are deleted.
// Plan lists the splits, one for each row group that the footer's statistics do not exclude. Fetch prefetches a split's bytes, after it
// checked that the file is the planned one, and Batches decodes them: it marks the rows that are deleted or that the filter excludes, and
// compares what is stated about the rows with them. All of it runs in the caller's goroutine, so a panic over a corrupt page becomes an
// error of that split.
package scan

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"golang.org/x/sync/semaphore"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/predicate"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
)

// footerLimit bounds the cached footers of a Table, in bytes.
const footerLimit = 64 << 20

// Table is one version of a dataset with the columns and the filter of a selection. It is safe for concurrent use and need not be
// closed. The source sets its fields before use; make it with New.
type Table struct {
	Store *objstore.Store
	Names parquet.NameMapping
	// ByName says that columns are known by their names alone, through Names: field ids in files don't count.
	ByName   bool
	Fields   []column.Field    // that are served
	Served   *arrow.Schema     // of Fields
	Filter   *predicate.Filter // nil: all rows
	Compared []column.Field    // that the filter compares, and that files have statistics of
	Mem      memory.Allocator  // for decoding
	// File returns the description of a split's data file.
	File func(ctx context.Context, s source.Split) (*File, error)

	all      []column.Field // the columns among which Choose selected Fields
	footers  *Cache[*parquet.Footer]
	longest  atomic.Int64        // length of the longest footer so far
	counting *semaphore.Weighted // files whose deletes are counted
}

var _ source.Dataset = (*Table)(nil)

// New returns a Table without fields.
func New(store *objstore.Store) *Table {
	return &Table{Store: store, Mem: &source.Buffers{}, footers: NewCache(footerLimit, (*parquet.Footer).Cost), counting: semaphore.NewWeighted(countReaders)}
}

// File describes a data file.
type File struct {
	Split source.Split // what all splits of the file have in common; Exact: but for the filter, Plan can count their rows
	Rows  int64        // of the whole file; -1: only its footer says how many
	// Constant are the values of columns that have one value in all rows of the file, by field id.
	Constant map[int]predicate.Bounds
	// Stated are the bounds of the filter's columns in the dataset's metadata, by field id.
	Stated map[int]predicate.Bounds
	// Columns returns how the columns of the file, whose footer is f, become those of the table.
	Columns func(f *parquet.Footer) (*Columns, error)
	// Deletes returns the deleted rows of the file. Nil: no row is deleted.
	Deletes func(ctx context.Context, c *Columns) (Deletes, error)
}

// Columns says how the columns of one data file become those of the table: first the served columns, then those that only filter and
// deletes compare.
type Columns struct {
	Projection *parquet.Projection
	Paths      map[int]column.Path // locates the fields that filter and deletes compare, by field id
	// Change replaces columns of a batch; at is the position of its first row in the file. Nil: nothing is to be replaced.
	Change func(columns []arrow.Array, at int64)
}

// Deletes are the rows of a data file that are deleted.
type Deletes struct {
	// Keep has a bit for every row of the file; 1 means that it is kept. Nil: all are.
	Keep []byte
	// Clear clears in m the rows of a batch that are deleted because of their values. Nil: none are.
	Clear func(m *predicate.Mask, columns []arrow.Array) error
}

// Schema is the schema of the served rows, which is exactly that of every batch. It must not be modified.
func (t *Table) Schema() *arrow.Schema { return t.Served }

// Footer reads the footer of a data file, which must have the given size; any if it is negative.
func (t *Table) Footer(ctx context.Context, uri string, size int64) (*parquet.Footer, error) {
	f, err := t.Store.OpenTail(ctx, uri, t.tail())
	if err != nil {
		return nil, fmt.Errorf("data file: %w", err)
	}
	defer func() { _ = f.Close() }() // opened for reading: closing can't lose data
	if size >= 0 && f.Size() != size {
		return nil, fmt.Errorf("data file %s: it has %d bytes, the table's metadata says %d: it was truncated or replaced: restore it or roll the table back", uri, f.Size(), size)
	}
	footer, err := t.read(ctx, f)
	if err != nil {
		return nil, err
	}
	t.sawFooter(footer.Length())
	return t.named(footer), nil
}

// named returns a footer with the field ids of the table's name mapping, if these count.
func (t *Table) named(f *parquet.Footer) *parquet.Footer {
	if t.ByName {
		return f.Named(t.Names)
	}
	return f
}

func (t *Table) read(ctx context.Context, f *objstore.File) (*parquet.Footer, error) {
	if t.ByName {
		return parquet.ReadNames(ctx, f)
	}
	return parquet.ReadFooter(ctx, f, t.Names)
}

// bounds returns the bounds of a row group's fields, which are known only for Compared and for constant columns.
func (t *Table) bounds(file *File, f *parquet.Footer, group int) func(column.Field) predicate.Bounds {
	known := f.Bounds(group)
	return func(field column.Field) predicate.Bounds {
		if b, ok := file.Constant[field.ID]; ok {
			return b
		}
		for _, c := range t.Compared {
			if c.ID == field.ID {
				return known(field)
			}
		}
		return predicate.Bounds{}
	}
}
