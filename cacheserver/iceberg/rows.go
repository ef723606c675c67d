// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/kubeflow/datacache/cacheserver/objstore"
)

// rowReader decodes one row group into the columns of a way, batch by batch. It
// is for one goroutine; whoever makes one closes it.
type rowReader struct {
	footer *footer
	group  int
	way    *way
	mem    allocator
	batch  int64
	parts  pqarrow.RecordReader // nil: the file has none of the columns
	read   int64                // rows so far
}

func newRowReader(ctx context.Context, f *footer, from *objstore.File, w *way, group int, batch int64, mem allocator) (_ *rowReader, err error) {
	defer recovered(&err)
	r := &rowReader{footer: f, group: group, way: w, mem: mem, batch: batch}
	leaves := w.leaves()
	if len(leaves) == 0 {
		return r, nil
	}
	reader, err := f.arrowReader(from, group, batch, mem)
	if err != nil {
		return nil, err
	}
	r.parts, err = reader.GetRecordReader(ctx, leaves, []int{group})
	return r, err
}

// next returns the columns of the next rows and how many rows they are, or
// io.EOF. The caller releases them. At the end it is an error if the rows were
// not as many as the footer says.
func (r *rowReader) next(ctx context.Context) (_ []arrow.Array, rows int, err error) {
	defer recovered(&err)
	if ctx.Err() != nil {
		return nil, 0, context.Cause(ctx)
	}
	raw, rows, err := r.raw()
	if errors.Is(err, io.EOF) && r.read != r.footer.rows(r.group) {
		return nil, 0, fmt.Errorf("it has %d rows, its footer promises %d: the file is corrupt: restore or rewrite it", r.read, r.footer.rows(r.group))
	}
	if err != nil {
		return nil, 0, err
	}
	if r.read += int64(rows); r.read > r.footer.rows(r.group) {
		return nil, 0, fmt.Errorf("it has more than the %d rows its footer promises: the file is corrupt: restore or rewrite it", r.footer.rows(r.group))
	}
	columns, err := r.way.projection.apply(ctx, r.mem, raw, rows)
	return columns, rows, err
}

// raw returns the columns as the file has them, owned by the reader until the
// next call.
func (r *rowReader) raw() ([]arrow.Array, int, error) {
	if r.parts == nil {
		n := min(r.batch, r.footer.rows(r.group)-r.read)
		if n == 0 {
			return nil, 0, io.EOF
		}
		return nil, int(n), nil
	}
	if !r.parts.Next() {
		if err := r.parts.Err(); err != nil {
			return nil, 0, err
		}
		return nil, 0, io.EOF
	}
	rec := r.parts.RecordBatch()
	return rec.Columns(), int(rec.NumRows()), nil
}

func (r *rowReader) close() {
	if r.parts != nil {
		r.parts.Release()
	}
}
