// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/objstore"
)

// projected describes how a column of the table, or a nested part of one, is made from a file's.
type projected struct {
	field   column.Field
	from    *fileColumn  // nil: the file lacks it, and every row has the constant
	at      int          // index of from among the columns read of its parent
	kids    []*projected // for a struct, list or map
	convert convert      // for a leaf; nil: it already has the field's type
	unwrap  bool         // for a list whose elements were read as structs with one list

	constant *constant
}

// Projection converts a file's columns to those of the table. It is immutable.
type Projection struct {
	footer  *Footer
	columns []*projected
	leaves  map[int]bool // Parquet columns to read
	bytes   map[int]bool // those of leaves that the file declares as text and the table as binary
	sorted  []int        // leaves in the file's order
}

// projector builds the projection of one file.
type projector struct {
	file    *Footer
	missing func(column.Field) (*column.Value, error)
	leaves  map[int]bool
	bytes   map[int]bool
}

// NewProjection returns the projection that makes fields from a file. missing returns the value of a field that the file lacks; nil
// is null.
func NewProjection(f *Footer, fields []column.Field, missing func(column.Field) (*column.Value, error)) (*Projection, error) {
	p := &projector{file: f, missing: missing, leaves: map[int]bool{}, bytes: map[int]bool{}}
	columns, from := make([]*projected, len(fields)), byID(f.columns)
	for i, field := range fields {
		var err error
		if columns[i], err = p.column(field, from[field.ID]); err != nil {
			return nil, fmt.Errorf("data file %s: column %q of type %s: %w", f.URI, field.Name, field.TypeName, err)
		}
		if from := columns[i].from; from != nil {
			from.markMaps(p.leaves)
		}
	}
	place(columns, f.columns, p.leaves)
	return &Projection{footer: f, columns: columns, leaves: p.leaves, bytes: p.bytes, sorted: slices.Sorted(maps.Keys(p.leaves))}, nil
}

func (p *projector) column(field column.Field, from *fileColumn) (*projected, error) {
	c := &projected{field: field, from: from}
	if from == nil {
		return c, p.fill(c)
	}
	if from.unreadable != nil {
		return nil, from.unreadable
	}
	if from.field.Type.ID() == arrow.NULL && field.Type.ID() != arrow.NULL && !field.Required {
		c.from, c.constant = nil, &constant{to: field.Type} // its writer knew no type, since all values were null
		return c, nil
	}
	if field.Variant {
		c.convert = fromVariant
		from.markLeaves(p.leaves)
		return c, isVariant(from.field.Type)
	}
	switch id := field.Type.ID(); {
	case id == arrow.STRUCT, id == arrow.LIST, id == arrow.MAP, id == arrow.FIXED_SIZE_LIST:
		return c, p.nested(c)
	case from.leaf < 0:
		return nil, fmt.Errorf("the table says %s, the file has %s", field.TypeName, from.field.Type)
	}
	p.leaves[from.leaf] = true
	p.bytes[from.leaf] = from.field.Type.ID() == arrow.STRING && field.Type.ID() == arrow.BINARY
	var err error
	c.convert, err = conversion(from.field.Type, field.Type, p.file.meta.Schema.Column(from.leaf).PhysicalType())
	return c, err
}

// fill makes c a constant: the partition's value, the field's initial default or null.
func (p *projector) fill(c *projected) error {
	cell, err := p.missing(c.field)
	if err != nil {
		return err
	}
	if cell == nil && c.field.Required {
		return fmt.Errorf("the column is required, but the file lacks it and it has no default")
	}
	c.constant = &constant{to: c.field.Type, cell: cell}
	return nil
}

// nested adds the fields of a struct, which are found by id, the element of a list, or the key and the value of a map.
func (p *projector) nested(c *projected) error {
	from, id := c.from.kids, c.field.Type.ID()
	if id == arrow.FIXED_SIZE_LIST {
		id = arrow.LIST // Parquet has no lists of fixed size
	}
	if c.from.field.Type.ID() != id || id != arrow.STRUCT && len(from) != len(c.field.Kids) {
		return fmt.Errorf("the table says %s, the file has %s", strings.ToLower(id.String()), c.from.field.Type)
	}
	if id == arrow.LIST && c.field.Kids[0].Type.ID() == arrow.LIST && isRepeatedList(from[0]) {
		from, c.unwrap = from[0].kids, true
	}
	found, ids := false, byID(from)
	for i, field := range c.field.Kids {
		of := ids[field.ID]
		if id != arrow.STRUCT {
			of = from[i]
		}
		found = found || of != nil
		kid, err := p.column(field, of)
		if err != nil {
			return fmt.Errorf("%s: %w", field.Name, err)
		}
		c.kids = append(c.kids, kid)
	}
	if leaf := c.from.firstLeaf(); !found && leaf >= 0 {
		p.leaves[leaf] = true // shows which structs are null
	}
	return nil
}

// isRepeatedList reports whether c is an inner list in the two-level form of Parquet lists: a repeated group with one repeated field
// (Parquet format, LogicalTypes.md, backward compatibility). pqarrow reads it as a struct whose only field is the list. Neither can
// be null.
func isRepeatedList(c *fileColumn) bool {
	return c.field.Type.ID() == arrow.STRUCT && len(c.kids) == 1 && c.kids[0].field.Type.ID() == arrow.LIST
}

// place sets the indices of columns and their children among the columns that are read; siblings are those of the file.
func place(columns []*projected, siblings []*fileColumn, leaves map[int]bool) {
	at := make(map[*fileColumn]int, len(siblings))
	read := 0
	for _, s := range siblings {
		if at[s] = read; s.anyLeaf(leaves) {
			read++
		}
	}
	for _, c := range columns {
		if c.from != nil {
			c.at = at[c.from]
			place(c.kids, c.from.kids, leaves)
		}
	}
}

// Leaves returns the Parquet columns to read, in the file's order.
func (p *Projection) Leaves() []int { return p.sorted }

// Check returns an error if the footer shows that the columns to read of a row group can't be read.
func (p *Projection) Check(group int) error { return p.footer.check(group, p.sorted) }

// Ranges returns the byte ranges of the column chunks to read, or of the pages of a section.
func (p *Projection) Ranges(s Section) ([]objstore.Range, error) {
	var ranges []objstore.Range
	for _, leaf := range p.sorted {
		r, err := p.footer.chunk(s.group, leaf)
		if err != nil {
			return nil, err
		}
		if at, ok := s.Pages[leaf]; ok {
			ranges = append(ranges, objstore.Range{Offset: at.Offset, Length: at.Length})
			r.Length = at.dictionary
		}
		ranges = append(ranges, r)
	}
	return ranges, nil
}

// Prefetch prefetches the Ranges of a section.
func (p *Projection) Prefetch(ctx context.Context, file *objstore.File, s Section) error {
	ranges, err := p.Ranges(s)
	if err != nil {
		return err
	}
	return file.Prefetch(ctx, ranges)
}

// apply converts a batch of the file's columns to those of the projection. The caller releases them.
func (p *Projection) apply(ctx context.Context, mem allocator, rec []arrow.Array, rows int) (_ []arrow.Array, err error) {
	out := make([]arrow.Array, 0, len(p.columns))
	defer func() {
		if err != nil {
			ReleaseAll(out)
		}
	}()
	for _, c := range p.columns {
		var from arrow.Array
		if c.from != nil {
			from = rec[c.at]
		}
		arr, err := c.make(ctx, mem, from, rows)
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", c.field.Name, err)
		}
		out = append(out, arr)
		if n := arr.NullN(); n > 0 && c.field.Required {
			return nil, fmt.Errorf("column %q: it is required, but has %d nulls", c.field.Name, n)
		}
	}
	return out, nil
}

// make returns c's array of n rows. It does not release from.
func (c *projected) make(ctx context.Context, mem allocator, from arrow.Array, n int) (arrow.Array, error) {
	switch {
	case c.from == nil:
		return c.constant.array(n)
	case c.kids != nil:
		return c.makeNested(ctx, mem, from)
	case c.convert != nil:
		return c.convert(ctx, mem, from, c.field.Type)
	}
	from.Retain()
	return from, nil
}

func (c *projected) makeNested(ctx context.Context, mem allocator, from arrow.Array) (arrow.Array, error) {
	if fixed, ok := c.field.Type.(*arrow.FixedSizeListType); ok {
		return c.makeFixed(ctx, mem, from, int64(fixed.Len()))
	}
	n, part, err := c.parts(from)
	if err != nil {
		return nil, err
	}
	kids := make([]arrow.ArrayData, 0, len(c.kids))
	for _, kid := range c.kids {
		var of arrow.Array
		if kid.from != nil {
			of = part(kid.at)
		}
		arr, err := kid.make(ctx, mem, of, n)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kid.field.Name, err)
		}
		defer arr.Release() // the data retains what it needs
		kids = append(kids, arr.Data())
	}
	d := from.Data()
	switch to := c.field.Type.(type) {
	case *arrow.StructType:
		valid, owned := validity(mem, from)
		if owned {
			defer valid.Release()
		}
		return wrap(array.NewData(to, n, []*memory.Buffer{valid}, kids, from.NullN(), 0)), nil
	case *arrow.MapType:
		entries := array.NewData(to.Elem(), n, []*memory.Buffer{nil}, kids, 0, 0)
		defer entries.Release()
		kids = []arrow.ArrayData{entries}
	}
	return wrap(array.NewData(c.field.Type, d.Len(), d.Buffers(), kids, from.NullN(), d.Offset())), nil
}

// parts returns the arrays of which c's children are made, by their index among the columns read, and their length.
func (c *projected) parts(from arrow.Array) (n int, part func(at int) arrow.Array, err error) {
	switch from := from.(type) {
	case *array.Struct:
		return from.Len(), from.Field, nil
	case *array.Map:
		return from.Keys().Len(), func(at int) arrow.Array { return []arrow.Array{from.Keys(), from.Items()}[at] }, nil
	case *array.List:
		values := from.ListValues()
		if c.unwrap {
			values = values.(*array.Struct).Field(0)
		}
		return values.Len(), func(int) arrow.Array { return values }, nil
	}
	return 0, nil, fmt.Errorf("it was read as %s and should be %s", from.DataType(), c.field.Type)
}

// validity returns the bitmap of arr with offset 0, nil if nothing is null; owned says whether the caller must release it.
func validity(mem allocator, arr arrow.Array) (_ *memory.Buffer, owned bool) {
	if arr.NullN() == 0 {
		return nil, false
	}
	d := arr.Data()
	if d.Offset() == 0 {
		return d.Buffers()[0], false
	}
	buf := memory.NewResizableBuffer(mem)
	buf.Resize(int(bitutil.BytesForBits(int64(arr.Len()))))
	bitutil.CopyBitmap(arr.NullBitmapBytes(), d.Offset(), arr.Len(), buf.Bytes(), 0)
	return buf, true
}

// wrap makes an array of data, and releases data.
func wrap(data arrow.ArrayData) arrow.Array {
	defer data.Release()
	return array.MakeFromData(data)
}

// ReleaseAll releases all elements.
func ReleaseAll[T interface{ Release() }](all []T) {
	for _, x := range all {
		x.Release()
	}
}
