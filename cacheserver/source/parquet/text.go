// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/kubeflow/datacache/cacheserver/source/parquet/decode"
)

// withValues returns a field, or a field of lists, whose values have another type.
func withValues(field arrow.Field, value arrow.DataType) arrow.Field {
	if list, ok := field.Type.(*arrow.ListType); ok {
		elem := list.ElemField()
		elem.Type = value
		value = arrow.ListOfField(elem)
	}
	field.Type = value
	return field
}

// toText returns a binary array as strings, which must be valid UTF-8.
func toText(ctx context.Context, mem allocator, arr arrow.Array, to arrow.DataType) (arrow.Array, error) {
	out, err := relabel(ctx, mem, arr, to)
	if err != nil {
		return nil, err
	}
	if err := checkValues(out); err != nil {
		out.Release()
		return nil, err
	}
	return out, nil
}

// checkValues checks that all strings in an array are valid UTF-8, and that lists and structs have all their values: pqarrow trusts the levels
// of corrupt pages. Package decode checks what it decodes itself.
func checkValues(arr arrow.Array) error {
	switch arr := arr.(type) {
	case *array.String:
		if data := arr.Data().Buffers()[2]; data != nil && arr.Len() > 0 {
			ends := arr.ValueOffsets()
			return decode.CheckText(data.Bytes(), ends[0], ends[1:])
		}
	case *array.Struct:
		for i := range arr.NumField() {
			if n := arr.Field(i).Len(); n < arr.Len() {
				return fmt.Errorf("corrupt page: %d values of a field of %d structs: restore or rewrite the file", n, arr.Len())
			}
			if err := checkValues(arr.Field(i)); err != nil {
				return err
			}
		}
	case array.ListLike: // maps too
		last, most := int64(0), int64(arr.ListValues().Len())
		for i := range arr.Len() {
			first, end := arr.ValueOffsets(i)
			if first < last || end < first || end > most {
				return fmt.Errorf("corrupt page: list %d has the values %d to %d of %d: restore or rewrite the file", i, first, end, most)
			}
			last = end
		}
		return checkValues(arr.ListValues())
	}
	return nil
}
