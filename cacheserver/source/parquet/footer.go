// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package parquet reads rows of Parquet row groups as columns of a table.
//
// ReadFooter maps the columns of a file to field ids. NewProjection determines how they become the columns of the table: which are
// read, converted, or constant because the file lacks them. Projection.Locate finds the pages of a range of rows, and a RowReader decodes
// them in batches, with package decode or, for types that it does not support, with pqarrow.
package parquet

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/kubeflow/datacache/cacheserver/objstore"
)

// streamBuffer is how much of a column chunk is read at a time.
const streamBuffer = 256 << 10

// Footer is a parsed Parquet footer. It is immutable.
type Footer struct {
	URI     string
	Size    int64
	Version string // objstore.File.Version
	meta    *metadata.FileMetaData
	length  int64 // of meta in the file
	columns []*fileColumn
	byField map[int]*fileColumn // columns by field id, with those in structs; the first one of each id
	leaves  int
}

// Length is the number of bytes that the footer takes at the end of the file.
func (f *Footer) Length() int64 { return f.length + footerTail }

// Cost is the approximate memory of a parsed footer.
func (f *Footer) Cost() int64 { return f.length*8 + 4096 }

// FeaturesKey is the key under which the library datasets stores what it knows of columns beyond their types, such as the names of classes.
const FeaturesKey = "huggingface"

// maxFeatures bounds the length of Features, which every schema message repeats.
const maxFeatures = 256 << 10

// Features is the value of FeaturesKey; empty if there is none.
func (f *Footer) Features() string {
	text := f.meta.KeyValueMetadata().FindValue(FeaturesKey)
	if text == nil || len(*text) > maxFeatures {
		return ""
	}
	return *text
}

// ReadFooter parses the footer of an open file. Columns that cannot be read are errors only of projections that need them.
func ReadFooter(ctx context.Context, f *objstore.File, names NameMapping) (*Footer, error) {
	return readFooter(ctx, f, func(m *pqarrow.SchemaManifest) ([]*fileColumn, error) { return fileColumns(m, names) })
}

func readFooter(ctx context.Context, f *objstore.File, find func(*pqarrow.SchemaManifest) ([]*fileColumn, error)) (*Footer, error) {
	p, err := parse(ctx, f)
	if err != nil {
		return nil, unreadableFooter(f.URI(), err)
	}
	meta := p.meta
	if meta.IsSetEncryptionAlgorithm() {
		return nil, fmt.Errorf("data file %s: it is encrypted: %w", f.URI(), errors.ErrUnsupported)
	}
	if err := checkRows(meta); err != nil {
		return nil, fmt.Errorf("data file %s: %w", f.URI(), err)
	}
	columns, err := find(p.manifest)
	if err != nil {
		return nil, fmt.Errorf("data file %s: %w", f.URI(), err)
	}
	for i, reason := range p.bad {
		columns[i].unreadable = reason
	}
	footer := &Footer{URI: f.URI(), Size: f.Size(), Version: f.Version(), meta: meta, length: p.length, leaves: meta.Schema.NumColumns()}
	footer.setColumns(columns)
	return footer, nil
}

func (f *Footer) setColumns(columns []*fileColumn) {
	f.columns, f.byField = columns, make(map[int]*fileColumn, len(columns))
	indexFields(columns, f.byField)
}

// parsed is a footer and its Arrow fields.
type parsed struct {
	meta     *metadata.FileMetaData
	length   int64 // of meta in the file
	manifest *pqarrow.SchemaManifest
	bad      unreadable // columns that arrow-go cannot represent
}

// parse parses a footer and its Arrow fields. All footers pass through it.
func parse(ctx context.Context, f *objstore.File) (p parsed, err error) {
	if p.meta, p.length, err = readThrift(ctx, f, f.Size()); err != nil {
		return p, err
	}
	if err = checkSchema(p.meta.FileMetaData.Schema); err != nil {
		return p, err
	}
	if p.manifest, err = arrowFields(p.meta); err == nil {
		return p, nil
	}
	if p.bad = plainTypes(p.meta); len(p.bad) > 0 {
		p.manifest, err = arrowFields(p.meta)
	}
	return p, err
}

func unreadableFooter(uri string, err error) error {
	return fmt.Errorf("data file %s: its Parquet footer cannot be read: %w: restore or rewrite the file", uri, err)
}

// FileRows returns the number of rows of a file according to its footer.
func FileRows(ctx context.Context, f *objstore.File) (int64, error) {
	p, err := parse(ctx, f)
	if err != nil {
		return 0, unreadableFooter(f.URI(), err)
	}
	if err := checkRows(p.meta); err != nil {
		return 0, fmt.Errorf("data file %s: %w", f.URI(), err)
	}
	return p.meta.NumRows, nil
}

// CheckCount returns an error if a file's footer has another number of rows than the table's manifest; role is the kind of the file.
func CheckCount(role, uri string, footer, manifest int64) error {
	if footer == manifest {
		return nil
	}
	return fmt.Errorf("%s %s: its footer has %d rows, the table's manifest %d: the file is truncated or was replaced: restore it or roll the table back", role, uri, footer, manifest)
}

// checkChunks returns an error unless each row group has the column chunks of all columns.
func checkChunks(meta *metadata.FileMetaData) error {
	for g, group := range meta.RowGroups {
		if n := meta.Schema.NumColumns(); len(group.Columns) != n {
			return fmt.Errorf("its footer has %d column chunks in row group %d and %d columns in its schema: the file is corrupt: restore or rewrite it", len(group.Columns), g, n)
		}
		for leaf, c := range group.Columns {
			if !c.IsSetMetaData() {
				return fmt.Errorf("its footer says nothing about column %q in row group %d: the file is corrupt: restore or rewrite it", meta.Schema.Column(leaf).Path(), g)
			}
		}
	}
	return nil
}

// checkRows compares the numbers of rows in a footer: the file's with the sum of its row groups, and each row group's with the values
// of its columns without lists, one of which must have as many.
func checkRows(meta *metadata.FileMetaData) error {
	if err := checkChunks(meta); err != nil {
		return err
	}
	var total int64
	for g, group := range meta.RowGroups {
		rows := group.GetNumRows()
		if rows < 0 || rows > math.MaxInt64-total { // fits: total is not negative
			return fmt.Errorf("its footer says %d rows in row group %d after %d others: the file is corrupt: restore or rewrite it", rows, g, total)
		}
		total += rows
	}
	if total != meta.NumRows {
		return fmt.Errorf("its footer says %d rows, its row groups have %d: the file is corrupt: restore or rewrite it", meta.NumRows, total)
	}
	for g, group := range meta.RowGroups {
		rows, most := group.GetNumRows(), int64(0)
		flat, agree := false, false
		for leaf, c := range group.Columns {
			values := c.GetMetaData().GetNumValues()
			most = max(most, values)
			if meta.Schema.Column(leaf).MaxRepetitionLevel() == 0 {
				flat, agree = true, agree || values == rows
			}
		}
		if (rows == 0 && most > 0) || (flat && !agree) {
			return fmt.Errorf("its footer says %d rows in row group %d, but no column has as many values: the file is corrupt: restore or rewrite it", rows, g)
		}
	}
	return nil
}

// records returns a pqarrow reader of some Parquet columns of a row group. It decodes in the caller's goroutine.
func (f *Footer) records(ctx context.Context, from *objstore.File, group int, leaves []int, batchRows int64, mem allocator) (pqarrow.RecordReader, error) {
	pages := parquet.NewReaderProperties(mem)
	pages.BufferedStreamEnabled = true
	pages.BufferSize = streamBuffer
	// A page is never larger than its column chunk. arrow-go's default limits are too low: writers put at least 1024 values in a
	// page, which may be images. And without any limit a corrupt page header could request any amount of memory.
	pages.MaxCompressedPageSize, pages.MaxUncompressedPageSize = f.largestChunk(group)
	r, err := file.NewParquetReader(from, file.WithMetadata(f.meta), file.WithReadProps(pages))
	if err != nil {
		return nil, err
	}
	props := pqarrow.ArrowReadProperties{BatchSize: batchRows}
	reader, err := pqarrow.NewFileReader(r, props, mem)
	if err != nil {
		return nil, err
	}
	if reader.Manifest, err = pqarrow.NewSchemaManifest(f.meta.Schema, nil, &props); err != nil {
		return nil, err
	}
	return reader.GetRecordReader(ctx, leaves, []int{group})
}

// largestChunk returns the largest compressed and uncompressed sizes of a column chunk of a row group.
func (f *Footer) largestChunk(group int) (compressed, uncompressed int64) {
	for _, c := range f.meta.RowGroups[group].Columns {
		compressed = max(compressed, c.GetMetaData().GetTotalCompressedSize())
		uncompressed = max(uncompressed, c.GetMetaData().GetTotalUncompressedSize())
	}
	return compressed, uncompressed
}

// Groups is the number of row groups.
func (f *Footer) Groups() int { return len(f.meta.RowGroups) }

// Rows is the number of rows of a row group.
func (f *Footer) Rows(group int) int64 { return f.meta.RowGroups[group].GetNumRows() }

// FirstRow is the position of a row group's first row in the file.
func (f *Footer) FirstRow(group int) int64 {
	var n int64
	for i := range group {
		n += f.Rows(i)
	}
	return n
}

// Total is the number of rows of all row groups.
func (f *Footer) Total() int64 { return f.FirstRow(len(f.meta.RowGroups)) }

// chunk is the byte range of a column chunk.
func (f *Footer) chunk(group, leaf int) (objstore.Range, error) {
	c := f.meta.RowGroups[group].Columns[leaf].GetMetaData()
	start := c.GetDataPageOffset()
	if d := c.GetDictionaryPageOffset(); c.IsSetDictionaryPageOffset() && d > 0 && d < start {
		start = d
	}
	r := objstore.Range{Offset: start, Length: c.GetTotalCompressedSize()}
	if r.Offset < 0 || r.Length < 0 || r.Length > f.Size-r.Offset { // fits: Offset is not negative
		return r, fmt.Errorf("data file %s row group %d: column %q lies at bytes [%d,%d) of a file of %d: the file is truncated or corrupt: restore or rewrite it", f.URI, group, f.meta.Schema.Column(leaf).Path(), r.Offset, r.Offset+r.Length, f.Size)
	}
	return r, nil
}

// check returns an error if the footer shows that columns of a row group can't be read: an unsupported codec, an impossible count, or
// a place outside the file.
func (f *Footer) check(group int, leaves []int) error {
	for _, leaf := range leaves {
		if err := f.checkChunk(group, leaf); err != nil {
			return fmt.Errorf("data file %s row group %d column %q: %w", f.URI, group, f.meta.Schema.Column(leaf).Path(), err)
		}
		if _, err := f.chunk(group, leaf); err != nil {
			return err
		}
	}
	return nil
}

func (f *Footer) checkChunk(group, leaf int) error {
	c := f.meta.RowGroups[group].Columns[leaf].GetMetaData()
	if _, err := compress.GetCodec(compress.Compression(c.GetCodec())); err != nil {
		return fmt.Errorf("it is compressed by codec %s: %w: rewrite the file with one of %s", c.GetCodec(), errors.ErrUnsupported, servedCodecs)
	}
	if n := min(c.GetNumValues(), c.GetTotalCompressedSize(), c.GetTotalUncompressedSize()); n < 0 {
		return fmt.Errorf("the footer says %d values, %d bytes compressed and %d uncompressed: a number overflowed in its writer: rewrite the file with smaller row groups",
			c.GetNumValues(), c.GetTotalCompressedSize(), c.GetTotalUncompressedSize())
	}
	if c.GetNumValues() > mostValues {
		return fmt.Errorf("the footer says %d values, at most %d are read: the file is corrupt: restore it, or rewrite it with smaller row groups", c.GetNumValues(), mostValues)
	}
	if rows := f.Rows(group); f.meta.Schema.Column(leaf).MaxRepetitionLevel() == 0 && c.GetNumValues() != rows {
		return fmt.Errorf("the footer says %d values in %d rows: the file is corrupt: restore or rewrite it", c.GetNumValues(), rows)
	}
	return nil
}

// mostValues bounds the values of a column chunk, far above what writers write, so that products with it fit 64 bits.
const mostValues int64 = 1 << 36

// servedCodecs lists the supported Parquet codecs, for error messages.
const servedCodecs = "UNCOMPRESSED, SNAPPY, GZIP, ZSTD, BROTLI, LZ4, LZ4_RAW"

// Extent is the byte range of a whole row group, without columns that have none; Projection.Check returns an error about these.
func (f *Footer) Extent(group int) (start, length int64) {
	var end int64
	for leaf := range f.leaves {
		r, err := f.chunk(group, leaf)
		if err != nil {
			continue
		}
		if end == 0 || r.Offset < start {
			start = r.Offset
		}
		end = max(end, r.Offset+r.Length)
	}
	return start, end - start // fits: both are within the file
}

// RecoverFileError converts a panic to an error that names the file.
func RecoverFileError(uri string, err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("data file %s: the decoder panicked: %v: restore or rewrite the file", uri, p)
	}
}

// RecoverError converts a panic to an error, to which the caller adds the file.
func RecoverError(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the decoder panicked: %v", p)
	}
}
