// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/kubeflow/datacache/cacheserver/rows/bitmap"
)

// Foreign is a record batch as somebody else sent it: the nodes and buffers of the Arrow IPC format, in the order of the layout's columns,
// depth first. Nothing of it is trusted.
type Foreign struct {
	Rows    int64
	Lengths []int64 // of the nodes
	Nulls   []int64 // likewise, as stated
	Buffers [][]byte
}

// mostForeignRows is the maximum number of rows of a foreign batch. A batch whose columns need no buffers has no other limit.
const mostForeignRows = 1 << 24

// Batch makes a record batch of the layout's schema that refers to f's buffers. It checks all that a [Builder] and a [Content] rely on: numbers
// of nodes and buffers, lengths and offsets. The caller releases the batch.
func (l *Layout) Batch(f Foreign) (arrow.RecordBatch, error) {
	switch {
	case len(f.Lengths) != len(l.nodes) || len(f.Nulls) != len(l.nodes) || len(f.Buffers) != l.buffers:
		return nil, fmt.Errorf("%d nodes and %d buffers: the schema needs %d and %d", len(f.Lengths), len(f.Buffers), len(l.nodes), l.buffers)
	case f.Rows < 0 || f.Rows > mostForeignRows:
		return nil, fmt.Errorf("%d rows: want at most %d in a batch", f.Rows, mostForeignRows)
	}
	columns := make([]arrow.Array, 0, len(l.columns))
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	for i := range l.columns {
		root := l.columns[i].root
		if f.Lengths[root.id] != f.Rows {
			return nil, fmt.Errorf("column %q: %d values in a batch of %d rows", root.path, f.Lengths[root.id], f.Rows)
		}
		data, err := f.array(root, l.schema.Field(i).Type)
		if err != nil {
			return nil, err
		}
		columns = append(columns, array.MakeFromData(data))
		data.Release()
	}
	return array.NewRecordBatch(l.schema, columns, f.Rows), nil
}

// array returns the array of a node. All its slots are checked, also those that no parent refers to, since a general reader may look at them.
func (f Foreign) array(n *node, dt arrow.DataType) (arrow.ArrayData, error) {
	length, nulls := f.Lengths[n.id], f.Nulls[n.id]
	if length < 0 || length > math.MaxInt32 {
		return nil, fmt.Errorf("column %q: %d values, want at most 2^31 - 1 in a batch", n.path, length)
	}
	buffers := make([]*memory.Buffer, n.kind.buffers())
	for i := range buffers {
		if b := f.Buffers[n.buf+i]; len(b) > 0 {
			buffers[i] = memory.NewBufferBytes(b)
		}
	}
	switch {
	case n.kind == kindNull:
		nulls = length
	case buffers[0] != nil && buffers[0].Len() < int(length+7)/8:
		return nil, short(n, "validity", buffers[0].Len(), int(length+7)/8)
	case buffers[0] != nil: // the bitmap says it
		nulls = length - int64(bitmap.Ones(unsafe.Pointer(unsafe.SliceData(buffers[0].Bytes())), 0, int(length))) // fits: there are at most length ones
	case nulls != 0:
		return nil, fmt.Errorf("column %q: %d nulls without a validity bitmap", n.path, nulls)
	}
	kids := make([]arrow.ArrayData, 0, len(n.kids))
	defer func() {
		for _, kid := range kids {
			kid.Release()
		}
	}()
	if len(n.kids) > 0 {
		fields := storage(dt).(arrow.NestedType).Fields()
		for i, kid := range n.kids {
			data, err := f.array(kid, fields[i].Type)
			if err != nil {
				return nil, err
			}
			if want := slotsOf(n, length); want > int64(data.Len()) {
				data.Release()
				return nil, fmt.Errorf("column %q: %d values, want %d", kid.path, data.Len(), want)
			}
			kids = append(kids, data)
		}
	}
	if n.typ.ID() == arrow.MAP && (kids[0].NullN() > 0 || kids[0].Children()[0].NullN() > 0) { // no library makes an array of these
		return nil, fmt.Errorf("column %q: a map has a null entry or a null key", n.path)
	}
	data := array.NewData(dt, int(length), buffers, kids, int(nulls), 0)
	if length > 0 && n.kind != kindNull {
		if err := checkBuffers(n, data, 0, int(length)); err != nil {
			data.Release()
			return nil, err
		}
	}
	return data, nil
}

// slotsOf is the number of slots that a child must have at least for a parent with some slots.
func slotsOf(n *node, slots int64) int64 {
	switch n.kind {
	case kindStruct:
		return slots
	case kindFixedList:
		return slots * int64(n.width) // fits: both are below 2^31
	}
	return 0 // the offsets are checked
}
