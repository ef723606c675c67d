// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scan

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
	file    *File
	footer  *parquet.Footer
	columns *Columns
	bytes   *objstore.File
	section parquet.Section

	report source.Report // of the last Batches
}

// Fetch prefetches the column chunks that s needs: those of the served columns and of the columns that filter and deletes compare. It
// decodes nothing, and reads nothing of a local file. ctx also applies to the reads of Batches: don't cancel it before they are done. If
// window is above 0, Batches reads about so many bytes of each column chunk at a time, and nothing is prefetched.
func (t *Table) Fetch(ctx context.Context, s source.Split, window int64) (source.Fetched, error) {
	f, err := t.fetch(ctx, s, window)
	if err != nil {
		return nil, fmt.Errorf("fetch split: %w", err)
	}
	return f, nil
}

func (t *Table) fetch(ctx context.Context, s source.Split, window int64) (_ *Fetched, err error) {
	f := &Fetched{table: t, split: s}
	if f.file, err = t.File(ctx, s); err != nil {
		return nil, err
	}
	if f.bytes, err = t.Store.Open(ctx, s.File); err != nil {
		return nil, fmt.Errorf("data file of row group %d: %w", s.RowGroup, err)
	}
	if err = f.prefetch(ctx, window); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// prefetch checks the file against the split and prefetches its bytes, unless they are read in windows.
func (f *Fetched) prefetch(ctx context.Context, window int64) (err error) {
	s := f.split
	defer parquet.RecoverFileError(s.File, &err)
	if f.bytes.Size() != s.FileSize {
		return fmt.Errorf("data file %s: it has %d bytes, planned were %d: it was truncated or replaced: restore it or start the cache anew", s.File, f.bytes.Size(), s.FileSize)
	}
	if now := f.bytes.Version(); s.Version != "" && now != "" && now != s.Version {
		return fmt.Errorf("data file %s: it changed since the table was planned: its version was %s and is %s now: table files must not be rewritten in place: restore it or start the cache anew", s.File, s.Version, now)
	}
	footer, err := f.table.footers.Get(ctx, s.File, func(ctx context.Context) (*parquet.Footer, error) {
		return f.table.read(ctx, f.bytes)
	})
	if err != nil {
		return err
	}
	f.footer = f.table.named(footer)
	if s.RowGroup < 0 || s.RowGroup >= f.footer.Groups() || s.First < 0 || s.Rows < 0 || s.End() > f.footer.Rows(s.RowGroup) {
		return fmt.Errorf("data file %s row group %d: its footer has no such row group with rows %d to %d: the file was replaced: restore it or start the cache anew", s.File, s.RowGroup, s.First, s.End())
	}
	if f.columns, err = f.file.Columns(f.footer); err != nil {
		return err
	}
	f.section, err = f.columns.Projection.Locate(ctx, f.bytes, s.RowGroup, s.First, s.End())
	if f.section.Window = window; err == nil && window == 0 {
		err = f.columns.Projection.Prefetch(ctx, f.bytes, f.section)
	}
	if err != nil {
		return f.failed(err)
	}
	return nil
}

// failed adds the split to an error.
func (f *Fetched) failed(err error) error { return fmt.Errorf("data file %s: %w", f.split, err) }

// Bytes is the memory that the fetched bytes take; 0 for a local file.
func (f *Fetched) Bytes() int64 { return f.bytes.Buffered() }

// Report returns how many columns of the split Batches decoded with package decode, and how many with the general reader, pqarrow; and
// null counts of the footer that differ from the rows.
func (f *Fetched) Report() source.Report { return f.report }

// Close releases the fetched bytes. Batches stay valid.
func (f *Fetched) Close() {
	_ = f.bytes.Close() // opened for reading: closing can't lose data
}
