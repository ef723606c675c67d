// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/kubeflow/datacache/cacheserver/leaf"
	"github.com/kubeflow/datacache/cacheserver/objstore"
)

// rowReader decodes one row group into the columns of a way, batch by batch. It
// is for one goroutine; whoever makes one closes it.
//
// Columns of plain values, or lists of those, are decoded by package leaf; what
// that does not cover is left to pqarrow, column by column.
type rowReader struct {
	footer  *footer
	group   int
	way     *way
	mem     allocator
	batch   int64
	columns []*fileColumn        // that are read
	own     []*leaf.Column       // by column; nil: one of rest
	rest    pqarrow.RecordReader // of the other columns; nil: there are none
	raw     []arrow.Array        // columns of the file in the batch under way
	read    int64                // rows so far
}

func newRowReader(ctx context.Context, f *footer, from *objstore.File, w *way, group int, batch int64, mem allocator) (_ *rowReader, err error) {
	defer recovered(&err)
	r := &rowReader{footer: f, group: group, way: w, mem: mem, batch: batch}
	if len(w.leaves()) == 0 {
		return r, nil
	}
	rest, err := r.open(from)
	if err == nil && len(rest) > 0 {
		err = r.openRest(ctx, from, rest)
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// openRest opens the columns of leaves by pqarrow, which does not look at the
// checksums of pages.
func (r *rowReader) openRest(ctx context.Context, from *objstore.File, leaves []int) error {
	for _, at := range leaves {
		chunk, err := r.chunk(from, at)
		if err != nil {
			return err
		}
		if err := leaf.Verify(chunk, withoutZeros(r.mem)); err != nil {
			return fmt.Errorf("column %q: %w", chunk.Leaf.Path(), err)
		}
	}
	var err error
	r.rest, err = r.footer.records(ctx, from, r.group, leaves, r.batch, r.mem)
	return err
}

// dictionaryBytes bounds what a batch makes of a column's dictionary, of which
// the footer does not tell how long its strings are.
const dictionaryBytes = 64 << 20

// open opens the columns that package leaf covers and returns the leaves of the
// others. It makes batches smaller if strings are very long.
func (r *rowReader) open(from *objstore.File) (rest []int, err error) {
	for _, c := range r.footer.columns {
		if !c.anyLeaf(r.way.projection.leaves) {
			continue
		}
		own, err := r.column(from, c)
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return nil, fmt.Errorf("column %q: %w", c.field.Name, err)
		}
		if own == nil {
			rest = c.readLeaves(rest, r.way.projection.leaves)
		} else {
			r.batch = max(min(r.batch, dictionaryBytes/int64(own.Longest()+1)), 1)
		}
		r.columns, r.own = append(r.columns, c), append(r.own, own)
	}
	return rest, nil
}

// restNames are the names of the columns that pqarrow reads.
func (r *rowReader) restNames() []string {
	var names []string
	for i, c := range r.own {
		if c == nil {
			names = append(names, strconv.Quote(r.columns[i].field.Name))
		}
	}
	return names
}

// column opens a column. The error is errors.ErrUnsupported if package leaf does
// not cover it.
func (r *rowReader) column(from *objstore.File, c *fileColumn) (*leaf.Column, error) {
	at := c.leaf
	if _, list := c.field.Type.(*arrow.ListType); list && len(c.kids) == 1 {
		at = c.kids[0].leaf
	}
	if at < 0 || r.footer.meta.WriterVersion().LessThan(metadata.Parquet816FixedVersion) {
		return nil, errors.ErrUnsupported
	}
	chunk, err := r.chunk(from, at)
	if err != nil {
		return nil, err
	}
	chunk.Field = c.field
	if chunk.Leaf.PhysicalType() == parquet.Types.Int96 {
		chunk.Field = asINT96(c.field)
	}
	return leaf.Open(chunk, withoutZeros(r.mem))
}

// chunk is the column chunk of a Parquet column, all but its Arrow field.
func (r *rowReader) chunk(from *objstore.File, at int) (leaf.Chunk, error) {
	bytes, err := r.footer.chunk(r.group, at)
	if err != nil {
		return leaf.Chunk{}, err
	}
	meta := r.footer.meta.RowGroups[r.group].Columns[at].GetMetaData()
	_, most := r.footer.largestChunk(r.group)
	return leaf.Chunk{
		File: from, Offset: bytes.Offset, Length: bytes.Length, Codec: compress.Compression(meta.GetCodec()), PageBytes: most,
		Leaf: r.footer.meta.Schema.Column(at), Rows: r.footer.rows(r.group), Values: meta.GetNumValues(),
	}, nil
}

// next returns the columns of the next rows and how many rows they are, or
// io.EOF. The caller releases them. At the end it is an error if the rows were
// not as many as the footer says.
func (r *rowReader) next(ctx context.Context) (_ []arrow.Array, rows int, err error) {
	defer recovered(&err)
	if ctx.Err() != nil {
		return nil, 0, context.Cause(ctx)
	}
	defer r.drop()
	rows, err = r.fill()
	if errors.Is(err, io.EOF) && r.read != r.footer.rows(r.group) {
		return nil, 0, fmt.Errorf("it has %d rows, its footer promises %d: the file is corrupt: restore or rewrite it", r.read, r.footer.rows(r.group))
	}
	if err != nil {
		return nil, 0, err
	}
	if r.read += int64(rows); r.read > r.footer.rows(r.group) {
		return nil, 0, fmt.Errorf("it has more than the %d rows its footer promises: the file is corrupt: restore or rewrite it", r.footer.rows(r.group))
	}
	columns, err := r.way.projection.apply(ctx, r.mem, r.raw, rows)
	return columns, rows, err
}

// fill decodes the columns of the next rows as the file has them, and returns how
// many rows they are, or io.EOF.
func (r *rowReader) fill() (rows int, err error) {
	rows = int(min(r.batch, r.footer.rows(r.group)-r.read))
	var rest []arrow.Array
	if r.rest != nil {
		if !r.rest.Next() {
			if err := r.rest.Err(); err != nil {
				return 0, fmt.Errorf("columns %s: %w", strings.Join(r.restNames(), ", "), err)
			}
			return 0, io.EOF
		}
		rest, rows = r.rest.RecordBatch().Columns(), int(r.rest.RecordBatch().NumRows())
	}
	if rows == 0 {
		return 0, io.EOF
	}
	for i, c := range r.own {
		var arr arrow.Array
		if c == nil {
			arr, rest = rest[0], rest[1:]
			arr.Retain()
		} else if arr, err = c.Read(rows); err != nil {
			return 0, fmt.Errorf("column %q: %w", r.columns[i].field.Name, err)
		}
		r.raw = append(r.raw, arr)
	}
	return rows, nil
}

// drop releases the batch under way.
func (r *rowReader) drop() {
	releaseAll(r.raw)
	r.raw = r.raw[:0]
}

func (r *rowReader) close() {
	for _, c := range r.own {
		if c != nil {
			c.Close()
		}
	}
	if r.rest != nil {
		r.rest.Release()
	}
}
