// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

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

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/parquet/decode"
)

// RowReader decodes rows of one row group into the columns of a projection, batch by batch. It is not safe for concurrent use; the
// caller that makes one closes it.
//
// Package decode decodes columns of primitive values or of lists of these; pqarrow decodes the others.
type RowReader struct {
	footer     *Footer
	file       *objstore.File
	section    Section
	projection *Projection
	mem        allocator
	batch      int64
	pageBytes  int64                // bounds the uncompressed size of a page
	columns    []*fileColumn        // columns of the file to read
	own        []*decode.Column     // by column; nil: it is in rest
	rest       pqarrow.RecordReader // the other columns; nil: there are none
	record     arrow.RecordBatch    // the current record of rest
	used       int64                // rows of it that were returned
	raw        []arrow.Array        // columns of the file in the current batch
	at         int64                // the row group's next row
	held       int64                // of section.Room, for rest
}

// NewRowReader returns a reader of the rows of s, in record batches of at most batch rows with the columns of p. The caller closes
// it.
func NewRowReader(ctx context.Context, p *Projection, from *objstore.File, s Section, batch int64, mem allocator) (_ *RowReader, err error) {
	defer RecoverError(&err)
	r := &RowReader{footer: p.footer, file: from, section: s, projection: p, mem: mem, batch: batch, at: s.first}
	if len(p.leaves) == 0 {
		return r, nil
	}
	if r.section.Room == nil {
		r.section.Room = roomFor(usualRoom)
	}
	_, r.pageBytes = p.footer.largestChunk(s.group)
	rest, err := r.open(from)
	if err == nil {
		err = r.reserveFixed()
	}
	if err == nil && len(rest) > 0 {
		err = r.openRest(ctx, from, rest)
	}
	if err == nil {
		err = r.skip()
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// reserveFixed reserves the memory for values of FIXED_LEN_BYTE_ARRAY in a batch, as far as it is more than a batch usually has: nulls take it
// too.
func (r *RowReader) reserveFixed() error {
	width := int64(0)
	for _, leaf := range r.projection.sorted {
		width += int64(max(r.footer.meta.Schema.Column(leaf).TypeLength(), 0))
	}
	need := max(width*r.batch-2*batchBytes, 0)
	if err := r.section.Room(need); err != nil {
		return fmt.Errorf("values of fixed width of %d rows: %w", r.batch, err)
	}
	r.held += need
	return nil
}

// openRest opens the columns of leaves with pqarrow, after checking the checksums of pages, which pqarrow does not do.
func (r *RowReader) openRest(ctx context.Context, from *objstore.File, leaves []int) error {
	for _, at := range leaves {
		chunk, err := r.chunk(from, at)
		if err != nil {
			return err
		}
		room, err := decode.Verify(chunk, source.WithoutZeros(r.mem))
		if err == nil {
			err = r.section.Room(room)
		}
		if err != nil {
			return fmt.Errorf("column %q: %w", chunk.Leaf.Path(), err)
		}
		r.held += room
	}
	var err error
	r.rest, err = r.footer.records(ctx, from, r.section.group, leaves, r.batch, r.mem)
	return err
}

// dictionaryBytes bounds the bytes that a column's dictionary expands to in a batch: the footer does not tell how long its strings
// are.
const dictionaryBytes = 8 << 20

// open opens the columns that package decode supports and returns the leaves of the others. It reduces the batch size if strings are
// very long.
func (r *RowReader) open(from *objstore.File) (rest []int, err error) {
	for _, c := range r.footer.columns {
		if !c.anyLeaf(r.projection.leaves) {
			continue
		}
		r.batch = max(min(r.batch, mostFixed/c.width()), 1)
		own, err := r.column(from, c)
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return nil, fmt.Errorf("column %q: %w", c.field.Name, err)
		}
		if own == nil {
			rest = c.readLeaves(rest, r.projection.leaves)
		} else {
			r.batch = max(min(r.batch, dictionaryBytes/int64(own.Longest()+1)), 1)
		}
		r.columns, r.own = append(r.columns, c), append(r.own, own)
	}
	return rest, nil
}

// Decoders returns how many columns are decoded by package decode, and how many by pqarrow.
func (r *RowReader) Decoders() (direct, general int) {
	for _, c := range r.own {
		if c == nil {
			general++
		}
	}
	return len(r.own) - general, general
}

// Position is the index in the row group of the next row that Next returns.
func (r *RowReader) Position() int64 { return r.at }

// restNames lists the names of the columns that pqarrow reads.
func (r *RowReader) restNames() []string {
	var names []string
	for i, c := range r.own {
		if c == nil {
			names = append(names, strconv.Quote(r.columns[i].field.Name))
		}
	}
	return names
}

// column opens a column. The error is errors.ErrUnsupported if package decode does not support it.
func (r *RowReader) column(from *objstore.File, c *fileColumn) (*decode.Column, error) {
	at, field, ok := r.footer.leafColumn(c)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	chunk, err := r.chunk(from, at)
	if err != nil {
		return nil, err
	}
	chunk.Field = field
	if r.projection.bytes[at] {
		chunk.Field = withValues(field, arrow.BinaryTypes.Binary) // which need not be UTF-8
	}
	if pages, ok := r.section.Pages[at]; ok {
		chunk.Length, chunk.Pages = pages.dictionary, &pages.Pages
	}
	return decode.Open(chunk, source.WithoutZeros(r.mem))
}

// chunk returns the column chunk of a Parquet column, without its Arrow field.
func (r *RowReader) chunk(from *objstore.File, at int) (decode.Chunk, error) {
	bytes, err := r.footer.chunk(r.section.group, at)
	if err != nil {
		return decode.Chunk{}, err
	}
	meta := r.footer.meta.RowGroups[r.section.group].Columns[at].GetMetaData()
	return decode.Chunk{
		File: from, Offset: bytes.Offset, Length: bytes.Length, Codec: compress.Compression(meta.GetCodec()), PageBytes: r.pageBytes,
		Window: r.section.Window, Room: r.section.Room, Leaf: r.footer.meta.Schema.Column(at), Rows: r.footer.Rows(r.section.group), Values: meta.GetNumValues(),
	}, nil
}

// leafColumn returns the Parquet column of a column that package decode may support, and the field that it is decoded to.
func (f *Footer) leafColumn(c *fileColumn) (at int, field arrow.Field, ok bool) {
	at, field = c.leaf, c.field
	if _, list := field.Type.(*arrow.ListType); list && len(c.kids) == 1 {
		at = c.kids[0].leaf
	}
	if at < 0 || f.meta.WriterVersion().LessThan(metadata.Parquet816FixedVersion) {
		return at, field, false
	}
	if f.meta.Schema.Column(at).PhysicalType() == parquet.Types.Int96 {
		field = withValues(field, int96Type) // pqarrow's nanoseconds can only represent the years 1677 to 2262
	}
	return at, field, true
}

// skip skips the rows before the section.
func (r *RowReader) skip() error {
	for i, c := range r.own {
		if c == nil {
			continue
		}
		first := r.section.first
		if pages, ok := r.section.Pages[r.columns[i].firstLeaf()]; ok {
			first -= pages.Row
		}
		if err := c.Skip(first); err != nil {
			return fmt.Errorf("column %q: %w", r.columns[i].field.Name, err)
		}
	}
	if r.rest == nil {
		return nil
	}
	for left := r.section.first; left > 0; {
		if err := r.more(); err != nil {
			return fmt.Errorf("the %d rows before the split: %w", r.section.first, err)
		}
		r.used = min(left, r.record.NumRows())
		left -= r.used
	}
	return nil
}

// more advances to the next record if all rows of the current one were returned, or returns io.EOF.
func (r *RowReader) more() error {
	if r.record != nil && r.used < r.record.NumRows() {
		return nil
	}
	r.record, r.used = nil, 0
	if r.rest.Next() {
		r.record = r.rest.RecordBatch()
		for i, column := range r.record.Columns() {
			if err := checkValues(column); err != nil {
				return fmt.Errorf("column %q: %w", r.record.ColumnName(i), err)
			}
		}
		return nil
	}
	if err := r.rest.Err(); err != nil {
		return fmt.Errorf("columns %s: %w", strings.Join(r.restNames(), ", "), err)
	}
	return io.EOF
}

// Next returns the columns of the next rows and their number, or io.EOF. The caller releases them. At the end it returns an error if
// the number of rows is not the footer's.
func (r *RowReader) Next(ctx context.Context) (_ []arrow.Array, rows int, err error) {
	defer RecoverError(&err)
	if ctx.Err() != nil {
		return nil, 0, context.Cause(ctx)
	}
	defer r.drop()
	rows, err = r.fill()
	for r.batch > 1 && errors.Is(err, decode.ErrFull) {
		if err = r.restart(ctx); err == nil {
			rows, err = r.fill()
		}
	}
	if errors.Is(err, io.EOF) {
		if err := r.checkEnd(); err != nil {
			return nil, 0, err
		}
	}
	if err != nil {
		return nil, 0, err
	}
	r.at += int64(rows)
	columns, err := r.projection.apply(ctx, r.mem, r.raw, rows)
	if err != nil {
		return nil, 0, fmt.Errorf("rows %d to %d: %w", r.at-int64(rows), r.at-1, err)
	}
	return columns, rows, nil
}

// restart opens the reader again at the current row, to read half as many rows at a time.
func (r *RowReader) restart(ctx context.Context) error {
	r.drop()
	r.Close()
	rest := r.section
	rest.first = r.at
	again, err := NewRowReader(ctx, r.projection, r.file, rest, r.batch/2, r.mem)
	if err != nil {
		r.own, r.rest = nil, nil // Close was called
		return err
	}
	*r = *again
	return nil
}

// checkEnd checks that the section's rows were read and that they end where the footer or the offset index states.
func (r *RowReader) checkEnd() error {
	rows := r.footer.Rows(r.section.group)
	if r.at != r.section.end {
		return fmt.Errorf("it has %d rows, its footer promises %d: the file is corrupt: restore or rewrite it", r.at, rows)
	}
	for i, c := range r.own {
		if c == nil {
			continue
		}
		if _, ok := r.section.Pages[r.columns[i].firstLeaf()]; !ok {
			continue
		}
		if err := c.SkipRest(); err != nil {
			return fmt.Errorf("column %q: %w", r.columns[i].field.Name, err)
		}
	}
	if r.rest != nil && r.section.end == rows && r.more() == nil {
		return fmt.Errorf("it has more than the %d rows its footer promises: the file is corrupt: restore or rewrite it", rows)
	}
	return nil
}

// fill decodes the file's columns for the next rows, and returns their number, or io.EOF.
func (r *RowReader) fill() (rows int, err error) {
	rows = int(min(r.batch, r.section.end-r.at))
	if rows == 0 {
		return 0, io.EOF
	}
	var rest []arrow.Array
	if r.rest != nil {
		if err := r.more(); err != nil {
			return 0, err
		}
		rows = int(min(int64(rows), r.record.NumRows()-r.used))
		rest = r.record.Columns()
		if rows < int(r.record.NumRows()) {
			part := r.record.NewSlice(r.used, r.used+int64(rows))
			defer part.Release()
			rest = part.Columns()
		}
		r.used += int64(rows)
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

// drop releases the current batch.
func (r *RowReader) drop() {
	ReleaseAll(r.raw)
	r.raw = r.raw[:0]
}

// Close releases what the reader holds; returned batches stay valid.
func (r *RowReader) Close() {
	for _, c := range r.own {
		if c != nil {
			c.Close()
		}
	}
	if r.rest != nil {
		r.rest.Release()
	}
	if r.held > 0 {
		_ = r.section.Room(-r.held) // returning memory never fails
		r.held = 0
	}
}

// Each calls visit with every batch of a row group.
func (r *RowReader) Each(ctx context.Context, visit func([]arrow.Array) error) error {
	defer r.Close()
	for {
		columns, _, err := r.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		err = visit(columns)
		ReleaseAll(columns)
		if err != nil {
			return err
		}
	}
}
