// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"context"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/predicate"
)

// column describes how a column of the table, or a nested part of one, is made from a file's.
type column struct {
	field   ice.NestedField
	to      arrow.DataType
	from    *fileColumn // nil: the file lacks it, and every row has the constant
	at      int         // index of from among the columns read of its parent
	kids    []*column   // for a struct, list or map
	convert convert     // for a leaf; nil: it already has type to
	unwrap  bool        // for a list whose elements were read as structs with one list

	constant *constant
}

// Projection converts a file's columns to those of the table.
type Projection struct {
	columns []*column
	leaves  map[int]bool // Parquet columns to read
	bytes   map[int]bool // those of leaves that the file declares as text and the table as binary
}

// projector builds the projection of one file.
type projector struct {
	file       *Footer
	properties ice.Properties
	missing    func(ice.NestedField) (*predicate.Value, error)
	leaves     map[int]bool
	bytes      map[int]bool
}

// NewProjection returns the projection that makes fields from a file. missing returns the value of a field that the file lacks; nil
// is null.
func NewProjection(f *Footer, fields []ice.NestedField, missing func(ice.NestedField) (*predicate.Value, error), properties ice.Properties) (*Projection, error) {
	p := &projector{file: f, properties: properties, missing: missing, leaves: map[int]bool{}, bytes: map[int]bool{}}
	columns := make([]*column, len(fields))
	for i, field := range fields {
		to, err := ArrowType(field, properties)
		if err != nil {
			return nil, err
		}
		if columns[i], err = p.column(field, to, byID(f.columns, field.ID)); err != nil {
			return nil, fmt.Errorf("data file %s: column %q of type %s: %w", f.URI, field.Name, field.Type, err)
		}
		if from := columns[i].from; from != nil {
			from.markMaps(p.leaves)
		}
	}
	for _, c := range columns {
		c.place(f.columns, p.leaves)
	}
	return &Projection{columns: columns, leaves: p.leaves, bytes: p.bytes}, nil
}

func (p *projector) column(field ice.NestedField, to arrow.DataType, from *fileColumn) (*column, error) {
	c := &column{field: field, to: to, from: from}
	if from == nil {
		return c, p.fill(c)
	}
	if from.unreadable != nil {
		return nil, from.unreadable
	}
	var err error
	switch t := field.Type.(type) {
	case *ice.StructType:
		err = p.structure(c, t)
	case *ice.ListType:
		err = p.list(c, t)
	case *ice.MapType:
		err = p.dictionary(c, t)
	case ice.VariantType:
		if err = isVariant(from.field.Type); err == nil {
			c.convert = fromVariant
			from.markLeaves(p.leaves)
		}
	default:
		if from.leaf < 0 {
			return nil, fmt.Errorf("the table says %s, the file has %s", field.Type, from.field.Type)
		}
		p.leaves[from.leaf] = true
		p.bytes[from.leaf] = from.field.Type.ID() == arrow.STRING && to.ID() == arrow.BINARY
		c.convert, err = conversion(from.field.Type, to, p.file.meta.Schema.Column(from.leaf).PhysicalType())
	}
	return c, err
}

// fill makes c a constant: the partition's value, the field's initial default or null.
func (p *projector) fill(c *column) error {
	cell, err := p.missing(c.field)
	if err != nil {
		return err
	}
	if cell == nil && c.field.Required {
		return fmt.Errorf("the column is required, but the file lacks it and it has no default")
	}
	c.constant = &constant{to: c.to, cell: cell}
	return nil
}

func (p *projector) structure(c *column, t *ice.StructType) error {
	to, ok := c.to.(*arrow.StructType)
	if _, isStruct := c.from.field.Type.(*arrow.StructType); !isStruct || !ok {
		return fmt.Errorf("the table says struct, the file has %s", c.from.field.Type)
	}
	found := false
	for i, field := range t.FieldList {
		from := byID(c.from.kids, field.ID)
		found = found || from != nil
		kid, err := p.column(field, to.Field(i).Type, from)
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

func (p *projector) list(c *column, t *ice.ListType) error {
	to, ok := c.to.(*arrow.ListType)
	if _, isList := c.from.field.Type.(*arrow.ListType); !isList || !ok {
		return fmt.Errorf("the table says list, the file has %s", c.from.field.Type)
	}
	element := c.from.kids[0]
	if _, ok := t.Element.(*ice.ListType); ok && isRepeatedList(element) {
		element, c.unwrap = element.kids[0], true
	}
	kid, err := p.column(t.ElementField(), to.Elem(), element)
	c.kids = []*column{kid}
	return err
}

// isRepeatedList reports whether c is an inner list in the two-level form of Parquet lists: a repeated group with one repeated field
// (Parquet format, LogicalTypes.md, backward compatibility). pqarrow reads it as a struct whose only field is the list. Neither can
// be null.
func isRepeatedList(c *fileColumn) bool {
	return c.field.Type.ID() == arrow.STRUCT && len(c.kids) == 1 && c.kids[0].field.Type.ID() == arrow.LIST
}

func (p *projector) dictionary(c *column, t *ice.MapType) error {
	to, ok := c.to.(*arrow.MapType)
	if _, isMap := c.from.field.Type.(*arrow.MapType); !isMap || !ok || len(c.from.kids) != 2 {
		return fmt.Errorf("the table says map, the file has %s", c.from.field.Type)
	}
	key, err := p.column(t.KeyField(), to.KeyType(), c.from.kids[0])
	if err != nil {
		return fmt.Errorf("key: %w", err)
	}
	value, err := p.column(t.ValueField(), to.ItemType(), c.from.kids[1])
	if err != nil {
		return fmt.Errorf("value: %w", err)
	}
	c.kids = []*column{key, value}
	return nil
}

// place sets the indices of c and its children among the columns that are read.
func (c *column) place(siblings []*fileColumn, leaves map[int]bool) {
	if c.from == nil {
		return
	}
	c.at = 0
	for _, s := range siblings {
		if s == c.from {
			break
		}
		if s.anyLeaf(leaves) {
			c.at++
		}
	}
	for _, kid := range c.kids {
		kid.place(c.from.kids, leaves)
	}
}

// Ranges returns the byte ranges of the column chunks to read, or of the pages of a section.
func (p *Projection) Ranges(f *Footer, s Section) ([]objstore.Range, error) {
	var ranges []objstore.Range
	for _, leaf := range p.Leaves() {
		r, err := f.chunk(s.group, leaf)
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
func (p *Projection) Prefetch(ctx context.Context, file *objstore.File, f *Footer, s Section) error {
	ranges, err := p.Ranges(f, s)
	if err != nil {
		return err
	}
	return file.Prefetch(ctx, ranges)
}

// Leaves returns the Parquet columns to read, in the file's order. It is never nil.
func (p *Projection) Leaves() []int {
	leaves := make([]int, 0, len(p.leaves))
	for leaf := range p.leaves {
		leaves = append(leaves, leaf)
	}
	slices.Sort(leaves)
	return leaves
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
func (c *column) make(ctx context.Context, mem allocator, from arrow.Array, n int) (arrow.Array, error) {
	if c.from == nil {
		return c.constant.array(n)
	}
	if c.kids == nil && c.convert == nil {
		from.Retain()
		return from, nil
	}
	if c.kids == nil {
		return c.convert(ctx, mem, from, c.to)
	}
	switch from := from.(type) {
	case *array.Struct:
		return c.makeStruct(ctx, mem, from)
	case *array.Map:
		return c.makeMap(ctx, mem, from)
	case *array.List:
		return c.makeList(ctx, mem, from)
	}
	return nil, fmt.Errorf("it was read as %s and should be %s", from.DataType(), c.to)
}

func (c *column) makeStruct(ctx context.Context, mem allocator, from *array.Struct) (arrow.Array, error) {
	kids := make([]arrow.ArrayData, 0, len(c.kids))
	for _, kid := range c.kids {
		var part arrow.Array
		if kid.from != nil {
			part = from.Field(kid.at)
		}
		arr, err := kid.make(ctx, mem, part, from.Len())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kid.field.Name, err)
		}
		defer arr.Release() // the data retains what it needs
		kids = append(kids, arr.Data())
	}
	valid, owned := validity(mem, from)
	if owned {
		defer valid.Release()
	}
	return wrap(array.NewData(c.to, from.Len(), []*memory.Buffer{valid}, kids, from.NullN(), 0)), nil
}

func (c *column) makeList(ctx context.Context, mem allocator, from *array.List) (arrow.Array, error) {
	values := from.ListValues()
	if c.unwrap {
		values = values.(*array.Struct).Field(0)
	}
	arr, err := c.kids[0].make(ctx, mem, values, values.Len())
	if err != nil {
		return nil, fmt.Errorf("element: %w", err)
	}
	defer arr.Release()
	d := from.Data()
	return wrap(array.NewData(c.to, d.Len(), d.Buffers(), []arrow.ArrayData{arr.Data()}, from.NullN(), d.Offset())), nil
}

func (c *column) makeMap(ctx context.Context, mem allocator, from *array.Map) (arrow.Array, error) {
	n := from.Keys().Len()
	keys, err := c.kids[0].make(ctx, mem, from.Keys(), n)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	defer keys.Release()
	values, err := c.kids[1].make(ctx, mem, from.Items(), n)
	if err != nil {
		return nil, fmt.Errorf("value: %w", err)
	}
	defer values.Release()
	entries := array.NewData(c.to.(*arrow.MapType).Elem(), n, []*memory.Buffer{nil}, []arrow.ArrayData{keys.Data(), values.Data()}, 0, 0)
	defer entries.Release()
	d := from.Data()
	return wrap(array.NewData(c.to, d.Len(), d.Buffers(), []arrow.ArrayData{entries}, from.NullN(), d.Offset())), nil
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
