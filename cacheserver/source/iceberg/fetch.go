// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"context"
	"fmt"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
)

// Fetched is a split whose bytes have been prefetched. It is not safe for concurrent use. Close it when its Batches have been read or
// are not needed.
type Fetched struct {
	table   *Table
	split   source.Split
	data    *dataFile // nil if the manifests are not needed
	footer  *parquet.Footer
	columns *scanColumns
	file    *objstore.File
	section parquet.Section

	report source.Report // of the last Batches
}

// Fetch prefetches the column chunks that s needs: those of the served columns and of the columns that filter and equality deletes
// compare. It decodes nothing, and reads nothing of a local file. ctx also applies to the reads of Batches: don't cancel it before
// they are done.
func (t *Table) Fetch(ctx context.Context, s source.Split) (*Fetched, error) {
	f, err := t.fetch(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("fetch split: %w", err)
	}
	return f, nil
}

func (t *Table) fetch(ctx context.Context, s source.Split) (_ *Fetched, err error) {
	f := &Fetched{table: t, split: s}
	if f.data, err = t.planned(ctx, s); err != nil {
		return nil, err
	}
	if f.file, err = t.store.Open(ctx, s.File); err != nil {
		return nil, fmt.Errorf("data file of row group %d: %w", s.RowGroup, err)
	}
	if err = f.prefetch(ctx); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// planned returns the data file of a split, or nil if no deletes, filter or partition values apply to it, so that a node that has
// only such splits need not read manifests.
func (t *Table) planned(ctx context.Context, s source.Split) (*dataFile, error) {
	if s.Exact && t.filter == nil && !t.partitioned() {
		return nil, nil
	}
	plan, err := t.files(ctx, t.filterFields())
	if err != nil {
		return nil, err
	}
	d, ok := plan.byName[fileName{s.File, s.Sequence}]
	if !ok {
		return nil, fmt.Errorf("data file %s: it is not in the plan of %s: the split is of another table, snapshot or filter", s.File, t.pin.MetadataLocation)
	}
	return d, nil
}

// prefetch checks the file against the split and prefetches its bytes.
func (f *Fetched) prefetch(ctx context.Context) (err error) {
	s := f.split
	defer parquet.RecoverFileError(s.File, &err)
	if f.file.Size() != s.FileSize {
		return fmt.Errorf("data file %s: it has %d bytes, planned were %d: it was truncated or replaced: restore it or start the cache anew", s.File, f.file.Size(), s.FileSize)
	}
	if now := f.file.Version(); s.Version != "" && now != "" && now != s.Version {
		return fmt.Errorf("data file %s: it changed since the table was planned: its version was %s and is %s now: table files must not be rewritten in place: restore it or start the cache anew", s.File, s.Version, now)
	}
	f.footer, err = f.table.caches.footers.get(ctx, s.File, func(context.Context) (*parquet.Footer, error) {
		return parquet.ReadFooter(ctx, f.file, f.table.names())
	})
	if err != nil {
		return err
	}
	if s.RowGroup < 0 || s.RowGroup >= f.footer.Groups() || s.First < 0 || s.Rows < 0 || s.End() > f.footer.Rows(s.RowGroup) {
		return fmt.Errorf("data file %s row group %d: its footer has no such row group with rows %d to %d: the file was replaced: restore it or start the cache anew", s.File, s.RowGroup, s.First, s.End())
	}
	if f.columns, err = f.table.columnsOf(f.footer, f.data); err != nil {
		return err
	}
	if f.section, err = parquet.LocateSection(ctx, f.file, f.footer, f.columns.projection, s.RowGroup, s.First, s.End()); err != nil {
		return fmt.Errorf("data file %s row group %d: %w", s.File, s.RowGroup, err)
	}
	ranges, err := f.columns.projection.Ranges(f.footer, f.section)
	if err != nil {
		return err
	}
	if err := f.file.Prefetch(ctx, ranges); err != nil {
		return fmt.Errorf("data file %s row group %d: %w", s.File, s.RowGroup, err)
	}
	return nil
}

// Bytes is the memory that the fetched bytes take; 0 for a local file.
func (f *Fetched) Bytes() int64 { return f.file.Buffered() }

// Close releases the fetched bytes. Batches stay valid.
func (f *Fetched) Close() {
	_ = f.file.Close() // opened for reading: closing can't lose data
}
