// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"context"
	"fmt"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/arrow/memory"
	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

// constant is a column of which every row is a field's initial default, or null.
// It is safe for concurrent use.
type constant struct {
	field      ice.NestedField
	to         arrow.DataType
	properties ice.Properties

	mu    sync.Mutex
	cells arrow.Array // the longest made so far; garbage collected, never released
}

// array returns n rows, which the caller releases.
func (c *constant) array(ctx context.Context, _ allocator, n int) (arrow.Array, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cells == nil || c.cells.Len() < n {
		cells, err := c.make(ctx, n)
		if err != nil {
			return nil, err
		}
		c.cells = cells
	}
	return array.NewSlice(c.cells, 0, int64(n)), nil
}

// make lets iceberg-go project the field out of a batch that has no columns: it
// knows how defaults of all types are written.
func (c *constant) make(ctx context.Context, n int) (arrow.Array, error) {
	ctx = compute.WithAllocator(ctx, memory.DefaultAllocator)
	empty := array.NewRecordBatch(arrow.NewSchema(nil, nil), nil, int64(n))
	out, err := table.ToRequestedSchema(ctx, ice.NewSchema(0, c.field), ice.NewSchema(0), empty, table.SchemaOptions{TableProperties: c.properties})
	if err != nil {
		return nil, fmt.Errorf("default %v: %w", c.field.InitialDefault, err)
	}
	defer out.Release()
	if int(out.NumRows()) != n {
		return nil, fmt.Errorf("default %v: %d rows where %d were asked", c.field.InitialDefault, out.NumRows(), n)
	}
	return retype(out.Column(0), c.to), nil
}

// retype returns arr under type to, which differs from its type in names,
// metadata and nullability of children only.
func retype(arr arrow.Array, to arrow.DataType) arrow.Array {
	return wrap(retypeData(arr.Data(), to))
}

func retypeData(d arrow.ArrayData, to arrow.DataType) arrow.ArrayData {
	nested, ok := to.(arrow.NestedType)
	if !ok {
		return array.NewData(to, d.Len(), d.Buffers(), d.Children(), d.NullN(), d.Offset())
	}
	kids := make([]arrow.ArrayData, len(d.Children()))
	for i, kid := range d.Children() {
		kids[i] = retypeData(kid, nested.Fields()[i].Type)
		defer kids[i].Release()
	}
	return array.NewData(to, d.Len(), d.Buffers(), kids, d.NullN(), d.Offset())
}
