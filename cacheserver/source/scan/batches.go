// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"context"
	"errors"
	"io"
	"iter"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/predicate"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
)

// Batches decodes the split's rows in order, about 4 MiB at a time. The sequence ends with an error or when every row was yielded: a
// row group with fewer or more rows than its footer states is an error, whatever else applies. Each call decodes again and yields the
// same batches. room is Section.Room of package parquet.
func (f *Fetched) Batches(ctx context.Context, room func(bytes int64) error) iter.Seq2[source.Batch, error] {
	return func(yield func(source.Batch, error) bool) {
		ctx := compute.WithAllocator(ctx, f.table.Mem)
		d, err := f.decoder(ctx, room)
		if err != nil {
			yield(source.Batch{}, f.failed(err))
			return
		}
		defer d.rows.Close()
		for {
			b, err := d.next(ctx)
			if errors.Is(err, io.EOF) {
				if err = f.bytes.Unchanged(); err == nil {
					err = d.stated.conclude(f)
				}
				if err == nil {
					return
				}
			}
			if err != nil {
				yield(source.Batch{}, f.failed(err))
				return
			}
			if b.RecordBatch != nil && !yield(b, nil) {
				return
			}
		}
	}
}

// decoder decodes the batches of a split.
type decoder struct {
	fetched *Fetched
	rows    *parquet.RowReader
	first   int64 // position of the row group's first row in the file
	deletes Deletes
	filter  *predicate.Evaluator
	stated  *statistics
}

func (f *Fetched) decoder(ctx context.Context, room func(bytes int64) error) (*decoder, error) {
	d := &decoder{fetched: f, first: f.footer.FirstRow(f.split.RowGroup)}
	var err error
	if f.file.Deletes != nil {
		if d.deletes, err = f.file.Deletes(ctx, f.columns); err != nil {
			return nil, err
		}
	}
	paths := make([]column.Path, len(f.table.Filter.Fields()))
	for i, field := range f.table.Filter.Fields() {
		paths[i] = f.columns.Paths[field.ID]
	}
	d.filter = f.table.Filter.Evaluator(paths)
	batch := parquet.BatchRows(f.columns.Projection.Weight(f.split.RowGroup, len(f.table.Fields)), f.footer.Rows(f.split.RowGroup))
	section := f.section
	section.Room = room
	if d.rows, err = parquet.NewRowReader(ctx, f.columns.Projection, f.bytes, section, batch, f.table.Mem); err != nil {
		return nil, err
	}
	f.report = source.Report{}
	f.report.Direct, f.report.General = d.rows.Decoders()
	d.stated = newStatistics(f)
	return d, nil
}

// next returns the next batch, none if no row of it is kept, or io.EOF.
func (d *decoder) next(ctx context.Context) (_ source.Batch, err error) {
	defer parquet.RecoverError(&err)
	at := d.first + d.rows.Position()
	columns, n, err := d.rows.Next(ctx)
	if err != nil {
		return source.Batch{}, err
	}
	defer parquet.ReleaseAll(columns)
	d.stated.add(columns)
	if change := d.fetched.columns.Change; change != nil {
		change(columns, at)
	}
	keep, kept, err := d.mask(columns, int(at), n)
	if err != nil || kept == 0 {
		return source.Batch{}, err
	}
	t := d.fetched.table
	rec := array.NewRecordBatch(t.Served, columns[:len(t.Fields)], int64(n))
	if kept == n {
		keep = nil
	}
	return source.Batch{RecordBatch: rec, Keep: keep}, nil
}

// mask returns the bitmap of the rows [at, at+n) that are kept, and their number.
func (d *decoder) mask(columns []arrow.Array, at, n int) (keep []byte, kept int, err error) {
	if d.deletes.Keep == nil && d.deletes.Clear == nil && d.fetched.table.Filter == nil {
		return nil, n, nil
	}
	m := predicate.NewMask(n)
	if d.deletes.Keep != nil {
		m.CopyFrom(d.deletes.Keep, at)
	}
	if d.deletes.Clear != nil {
		if err := d.deletes.Clear(m, columns); err != nil {
			return nil, 0, err
		}
	}
	if err := d.filter.Apply(m, columns); err != nil {
		return nil, 0, err
	}
	return m.Bits, m.Kept(), nil
}
