// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// mostFixed is the number of values of up to 8 bytes that the lists of fixed size in a batch may have: lists that are null have them too, although they take no
// room in the file.
const mostFixed = 4 << 20

// width is the number of values in a row of lists of fixed size within each other, longer ones counted by words, at most mostFixed; that of one
// value for another column.
func (c *fileColumn) width() int64 {
	n := int64(1)
	for ; c.size > 0 && n < mostFixed; c = c.kids[0] {
		n *= int64(c.size)
	}
	return min(n*words(c.field.Type), mostFixed)
}

// words is how many values of 8 bytes a value of a type is as large as, at least 1.
func words(t arrow.DataType) int64 {
	if fixed, ok := t.(*arrow.FixedSizeBinaryType); ok {
		return max(int64(fixed.ByteWidth)/8, 1)
	}
	return 1
}

// makeFixed returns lists that all have the same length, which Parquet stores as lists of any length.
func (c *projected) makeFixed(ctx context.Context, mem allocator, from arrow.Array, size int64) (arrow.Array, error) {
	lists, ok := from.(*array.List)
	if !ok {
		return nil, fmt.Errorf("it was read as %s and should be %s", from.DataType(), c.field.Type)
	}
	for i := range lists.Len() {
		if first, end := lists.ValueOffsets(i); end-first != size && lists.IsValid(i) {
			return nil, fmt.Errorf("list %d of these has %d values, the writer's schema says that all have %d: rewrite the file without %s, or leave the column out", i, end-first, size, originKey)
		}
	}
	values, err := fixedValues(ctx, mem, lists, size)
	if err != nil {
		return nil, err
	}
	defer values.Release()
	kid, err := c.kids[0].make(ctx, mem, values, values.Len())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.kids[0].field.Name, err)
	}
	defer kid.Release() // the data retains what it needs
	valid, owned := validity(mem, from)
	if owned {
		defer valid.Release()
	}
	return wrap(array.NewData(c.field.Type, lists.Len(), []*memory.Buffer{valid}, []arrow.ArrayData{kid.Data()}, from.NullN(), 0)), nil
}

// fixedValues returns the values of lists of equal length, one after the other, with nulls for lists that are null.
func fixedValues(ctx context.Context, mem allocator, lists *array.List, size int64) (arrow.Array, error) {
	if lists.NullN() == 0 {
		first := int64(0)
		if lists.Len() > 0 {
			first, _ = lists.ValueOffsets(0)
		}
		return array.NewSlice(lists.ListValues(), first, first+int64(lists.Len())*size), nil
	}
	if n := int64(lists.Len()) * size; n > mostFixed/words(lists.DataType().(*arrow.ListType).Elem()) {
		return nil, fmt.Errorf("%d lists, some of them null, of %d values each do not fit a batch: leave the column out, or rewrite the file without %s", lists.Len(), size, originKey)
	}
	places := array.NewInt64Builder(mem)
	defer places.Release()
	places.Reserve(lists.Len() * int(size))
	for i := range lists.Len() {
		first, _ := lists.ValueOffsets(i)
		for k := range size {
			if lists.IsNull(i) {
				places.UnsafeAppendBoolToBitmap(false)
				continue
			}
			places.UnsafeAppend(first + k)
		}
	}
	at := places.NewArray()
	defer at.Release()
	return compute.TakeArray(compute.WithAllocator(ctx, mem), lists.ListValues(), at)
}
