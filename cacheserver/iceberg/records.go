// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
)

// Records decodes the split's rows in their order, as batches of about 4 MiB,
// each with Table.Schema and at least one row. The caller releases every batch.
// It ends with an error, or when every row was given: a row group with fewer or
// more rows than its footer says is an error, whatever else applies. Each call
// decodes anew and gives the same batches.
func (f *Fetched) Records(ctx context.Context) iter.Seq2[arrow.RecordBatch, error] {
	return func(yield func(arrow.RecordBatch, error) bool) {
		ctx := compute.WithAllocator(ctx, f.table.mem)
		d, err := f.decoder(ctx)
		if err != nil {
			yield(nil, f.failed(err))
			return
		}
		defer d.rows.close()
		for {
			rec, err := d.next(ctx)
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(nil, f.failed(err))
				return
			}
			if rec != nil && !yield(rec, nil) {
				return
			}
		}
	}
}

func (f *Fetched) failed(err error) error {
	return fmt.Errorf("data file %s row group %d: %w", f.split.File, f.split.RowGroup, err)
}

// decoder makes the batches of a split.
type decoder struct {
	fetched *Fetched
	rows    *rowReader
	first   int64  // position in the file of the row group's first row
	keep    bitmap // by position in the file; nil: no row is deleted by position
	equal   []*equalDeletes
}

func (f *Fetched) decoder(ctx context.Context) (*decoder, error) {
	d := &decoder{fetched: f, first: f.footer.firstRow(f.split.RowGroup)}
	var err error
	if d.keep, err = f.table.keeps(ctx, f.data); err != nil {
		return nil, err
	}
	if d.equal, err = f.table.equalDeletes(ctx, f.data, f.way); err != nil {
		return nil, err
	}
	batch := batchRows(f.way.weight(f.footer, f.split.RowGroup), f.split.Rows)
	d.rows, err = newRowReader(ctx, f.footer, f.file, f.way, f.split.RowGroup, batch, f.table.mem)
	return d, err
}

// next returns the next batch, nil if no row of it stays, or io.EOF.
func (d *decoder) next(ctx context.Context) (_ arrow.RecordBatch, err error) {
	defer recovered(&err)
	at := d.first + d.rows.read
	columns, n, err := d.rows.next(ctx)
	if err != nil {
		return nil, err
	}
	defer releaseAll(columns)
	rec := array.NewRecordBatch(d.fetched.table.served, columns[:d.fetched.way.served], int64(n))
	if d.keep == nil && d.equal == nil && d.fetched.table.filter == nil {
		return rec, nil
	}
	defer rec.Release()
	m := newMask(n)
	if d.keep != nil {
		m.copyFrom(d.keep, int(at))
	}
	for _, e := range d.equal {
		if err := e.clear(m, columns); err != nil {
			return nil, err
		}
	}
	if err := d.fetched.table.clearUnmatched(m, d.fetched.way, columns); err != nil {
		return nil, err
	}
	return m.apply(ctx, rec)
}
