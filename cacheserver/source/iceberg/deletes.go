// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table/dv"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/predicate"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
	"github.com/kubeflow/datacache/cacheserver/source/scan"
)

// deleteRows is the number of rows of a delete file that are decoded at a time.
const deleteRows = 64 << 10

// bitmap has a bit for every row of a data file; 1 means that the row is kept.
type bitmap []byte

// positions maps data files to deleted positions, as listed in one positional delete file.
type positions map[string][]int64

func (p positions) cost() int64 {
	n := int64(64)
	for path, at := range p {
		n += int64(len(path)) + 64 + int64(len(at))*8
	}
	return n
}

// deleteLimit bounds the cached contents of a table's delete files, in bytes, for each way in which they are kept; keptLimit bounds the bitmaps.
const deleteLimit, keptLimit = 256 << 20, 64 << 20

// deleteReader reads the delete files of a table, each once while it is cached. It is safe for concurrent use.
type deleteReader struct {
	*Table
	positions *scan.Cache[positions] // by delete file
	kept      *scan.Cache[bitmap]    // by data file
	equal     *scan.Cache[*keySet]   // by delete file and field types
}

func newDeleteReader(t *Table) *deleteReader {
	return &deleteReader{
		Table:     t,
		positions: scan.NewCache(deleteLimit, positions.cost),
		kept:      scan.NewCache(keptLimit, func(b bitmap) int64 { return int64(len(b)) + 64 }),
		equal:     scan.NewCache(deleteLimit, (*keySet).cost),
	}
}

// deletes returns what deletes rows of a data file that has delete files.
func (t *deleteReader) deletes(ctx context.Context, d *dataFile, c *scan.Columns) (deletes scan.Deletes, err error) {
	if deletes.Keep, err = t.keeps(ctx, d); err != nil {
		return deletes, err
	}
	equal, err := t.equalDeletes(ctx, d, c)
	if len(equal) > 0 {
		deletes.Clear = func(m *predicate.Mask, columns []arrow.Array) error {
			for _, e := range equal {
				if err := e.clear(m, columns); err != nil {
					return err
				}
			}
			return nil
		}
	}
	return deletes, err
}

// keeps returns the bitmap of the rows that a data file's positional deletes and deletion vectors keep; nil if it has none of these.
func (t *deleteReader) keeps(ctx context.Context, d *dataFile) (bitmap, error) {
	if len(d.deletes.position)+len(d.deletes.vectors) == 0 {
		return nil, nil
	}
	if d.rows > maxFileRows {
		return nil, fmt.Errorf("data file %s, which has row-level deletes, has %w", d.path, overBound(d.rows, maxFileRows, "rows"))
	}
	key := fmt.Sprintf("%d %s", d.sequence, d.path)
	return t.kept.Get(ctx, key, func(ctx context.Context) (bitmap, error) {
		if len(d.deletes.vectors) > 0 {
			return t.readVector(ctx, d)
		}
		return t.readPositions(ctx, d)
	})
}

// readVector reads the deletion vector of a data file; the planner ensures that there is at most one.
func (t *deleteReader) readVector(ctx context.Context, d *dataFile) (_ bitmap, err error) {
	defer parquet.RecoverError(&err)
	if len(d.deletes.vectors) != 1 {
		return nil, fmt.Errorf("data file %s has %d deletion vectors, one is allowed: repair the table", d.path, len(d.deletes.vectors))
	}
	v := d.deletes.vectors[0]
	bits, err := dv.ReadDV(fileIO{ctx: ctx, store: t.Store}, v)
	if err != nil {
		return nil, fmt.Errorf("deletion vector %s of data file %s: %w", v.FilePath(), d.path, err)
	}
	return bits.KeepMaskBytes(d.rows), nil
}

func (t *deleteReader) readPositions(ctx context.Context, d *dataFile) (bitmap, error) {
	rows := d.rows
	keep := make(bitmap, bitutil.BytesForBits(rows))
	for i := range keep {
		keep[i] = 0xff
	}
	for _, file := range d.deletes.position {
		at, err := t.positions.Get(ctx, file.FilePath(), func(ctx context.Context) (positions, error) {
			return t.readPositionFile(ctx, file)
		})
		if err != nil {
			return nil, err
		}
		for _, pos := range at[d.path] {
			if pos < 0 {
				return nil, fmt.Errorf("delete file %s: position %d of %s is negative: the file is corrupt", file.FilePath(), pos, d.path)
			}
			if pos < rows {
				bitutil.ClearBit(keep, int(pos))
			}
		}
	}
	return keep, nil
}

// positionFields are the columns of positional delete files.
var positionFields = func() []column.Field {
	fields := ice.PositionalDeleteSchema.Fields()
	return []column.Field{fieldAs(fields[0], arrow.BinaryTypes.String), fieldAs(fields[1], arrow.PrimitiveTypes.Int64)}
}()

// readPositionFile reads a whole positional delete file (Iceberg spec, position delete files).
func (t *deleteReader) readPositionFile(ctx context.Context, file ice.DataFile) (positions, error) {
	out := positions{}
	var last string
	var at []int64
	err := t.readDeletes(ctx, file, positionFields, func(columns []arrow.Array) error {
		path, ok := columns[0].(*array.String)
		pos, ok2 := columns[1].(*array.Int64)
		if !ok || !ok2 || path.NullN() > 0 || pos.NullN() > 0 {
			return errors.New("its columns file_path and pos must be a string and a long without nulls")
		}
		for i := range path.Len() {
			if p := path.Value(i); p != last || at == nil { // rows are sorted by path
				if at != nil {
					out[last] = at
				}
				last = strings.Clone(p)
				at = out[last]
			}
			at = append(at, pos.Value(i))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if at != nil {
		out[last] = at
	}
	return out, nil
}

// readDeletes reads some fields of all rows of a delete file, batch by batch. visit must not retain the columns.
func (t *deleteReader) readDeletes(ctx context.Context, file ice.DataFile, fields []column.Field, visit func([]arrow.Array) error) error {
	err := t.scanDeletes(ctx, file, fields, visit)
	if err != nil {
		return fmt.Errorf("delete file %s: %w", file.FilePath(), err)
	}
	return nil
}

func (t *deleteReader) scanDeletes(ctx context.Context, file ice.DataFile, fields []column.Field, visit func([]arrow.Array) error) (err error) {
	defer parquet.RecoverError(&err)
	f, err := t.Store.Open(ctx, file.FilePath())
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading: closing can't lose data
	foot, err := parquet.ReadFooter(ctx, f, t.namesOfDeletes(fields))
	if err != nil {
		return err
	}
	if err := parquet.CheckCount(roleOf(file), file.FilePath(), foot.Total(), file.Count()); err != nil {
		return err
	}
	if foot.Total() > maxDeleteRows {
		return fmt.Errorf("it has %w: compact the table", overBound(foot.Total(), maxDeleteRows, "rows"))
	}
	p, err := parquet.NewProjection(foot, fields, sources{}.value)
	if err != nil {
		return err
	}
	for g := range foot.Groups() {
		if foot.Rows(g) == 0 {
			continue // such a row group need not have pages
		}
		if err := p.Check(g); err != nil {
			return err
		}
		rows, err := parquet.NewRowReader(ctx, p, f, foot.Whole(g), deleteRows, t.Mem)
		if err != nil {
			return err
		}
		if err := rows.Each(ctx, visit); err != nil {
			return err
		}
	}
	return nil
}

// namesOfDeletes returns a mapping of a delete file's column names to field ids, for files without ids.
func (t *deleteReader) namesOfDeletes(fields []column.Field) parquet.NameMapping {
	names := t.Names
	for _, f := range fields {
		names = append(slices.Clip(names), parquet.MappedName{Names: []string{f.Name}, ID: f.ID})
	}
	return names
}
