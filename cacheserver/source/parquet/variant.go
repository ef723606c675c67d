// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/variant"
)

// isVariant returns an error unless a column of a file contains variants: a group with that logical type, or without one but with the
// columns of one, as some writers leave it out.
func isVariant(t arrow.DataType) error {
	if _, ok := t.(*extensions.VariantType); ok {
		return nil
	}
	_, err := extensions.NewVariantType(t)
	return err
}

// fromVariant converts variants, shredded or not, to structs of metadata and value.
func fromVariant(_ context.Context, mem allocator, arr arrow.Array, to arrow.DataType) (arrow.Array, error) {
	variants, ok := arr.(*extensions.VariantArray)
	if !ok {
		typ, err := extensions.NewVariantType(arr.DataType())
		if err != nil {
			return nil, err
		}
		variants = array.NewExtensionArrayWithStorage(typ, arr).(*extensions.VariantArray)
		defer variants.Release()
	}
	rows := variants.Storage().(*array.Struct)
	if variants.IsShredded() {
		return reassembled(mem, variants, rows, to.(*arrow.StructType))
	}
	valid, owned := validity(mem, rows)
	if owned {
		defer valid.Release()
	}
	metadata, value := variants.Metadata(), variants.UntypedValues()
	if value.NullN() > rows.NullN() {
		return nil, fmt.Errorf("a variant has no value: restore or rewrite the file")
	}
	kids := []arrow.ArrayData{metadata.Data(), value.Data()}
	return wrap(array.NewData(to, rows.Len(), []*memory.Buffer{valid}, kids, rows.NullN(), 0)), nil
}

// reassembled converts shredded variants.
func reassembled(mem allocator, variants *extensions.VariantArray, rows *array.Struct, to *arrow.StructType) (arrow.Array, error) {
	out := array.NewStructBuilder(mem, to)
	defer out.Release()
	metadata, value := out.FieldBuilder(0).(*array.BinaryBuilder), out.FieldBuilder(1).(*array.BinaryBuilder)
	for i := range variants.Len() {
		if rows.IsNull(i) {
			out.AppendNull()
			continue
		}
		v, err := variants.Value(i)
		if err == nil {
			v, err = ordered(v, variants.Metadata().Value(i))
		}
		if err != nil {
			return nil, fmt.Errorf("a shredded variant cannot be put together: %w: restore or rewrite the file", err)
		}
		out.Append(true)
		metadata.Append(v.Metadata().Bytes())
		value.Append(v.Bytes())
	}
	return out.NewArray(), nil
}

// ordered returns v, whose dictionary begins with metadata, with the fields of its objects in order: variant.Builder stores those of
// shredded objects in random order.
func ordered(v variant.Value, metadata []byte) (variant.Value, error) {
	switch v.BasicType() {
	case variant.BasicObject, variant.BasicArray:
	default:
		return v, nil
	}
	names, err := variant.NewMetadata(metadata)
	if err != nil {
		return v, err
	}
	b := variant.NewBuilderFromMeta(names)
	if err := appendOrdered(b, v); err != nil {
		return v, err
	}
	return b.Build()
}

func appendOrdered(b *variant.Builder, v variant.Value) error {
	start := b.Offset()
	switch of := v.Value().(type) {
	case variant.ObjectValue:
		fields := make([]variant.FieldEntry, 0, of.NumElements())
		for i := range of.NumElements() {
			field, err := of.FieldAt(i)
			if err != nil {
				return err
			}
			fields = append(fields, b.NextField(start, field.Key))
			if err := appendOrdered(b, field.Value); err != nil {
				return err
			}
		}
		return b.FinishObject(start, fields)
	case variant.ArrayValue:
		elements := make([]int, 0, of.Len())
		for element := range of.Values() {
			elements = append(elements, b.NextElement(start))
			if err := appendOrdered(b, element); err != nil {
				return err
			}
		}
		return b.FinishArray(start, elements)
	}
	return b.UnsafeAppendEncoded(v.Bytes())
}
