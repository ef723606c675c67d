// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package sink

import (
	"bytes"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// relabel returns a batch with the same values and a schema made by withIDs. Lists that are null have no values in it, since pqarrow writes no others.
func relabel(batch arrow.RecordBatch, schema *arrow.Schema) (arrow.RecordBatch, error) {
	columns := make([]arrow.Array, batch.NumCols())
	defer func() {
		for _, c := range columns {
			if c != nil {
				c.Release()
			}
		}
	}()
	for i, c := range batch.Columns() {
		data, err := relabelData(c.Data(), schema.Field(i).Type)
		if err != nil {
			return nil, err
		}
		columns[i] = array.MakeFromData(data)
		data.Release()
	}
	return array.NewRecordBatch(schema, columns, batch.NumRows()), nil
}

func relabelData(d arrow.ArrayData, dt arrow.DataType) (arrow.ArrayData, error) {
	nested, ok := dt.(arrow.NestedType)
	if !ok {
		return array.NewData(dt, d.Len(), d.Buffers(), nil, d.NullN(), d.Offset()), nil
	}
	if plain, err := withoutHidden(d, dt); plain != nil || err != nil {
		if err != nil {
			return nil, err
		}
		defer plain.Release()
		d = plain
	}
	fields := nested.Fields()
	children := make([]arrow.ArrayData, len(d.Children()))
	for i, child := range d.Children() {
		made, err := relabelData(child, fields[i].Type)
		if err != nil {
			return nil, err
		}
		children[i] = made
		defer made.Release()
	}
	return array.NewData(dt, d.Len(), d.Buffers(), children, d.NullN(), d.Offset()), nil
}

// withoutHidden returns lists of fixed size as other ones, and lists of which null ones have values without these; nil for all else.
func withoutHidden(d arrow.ArrayData, to arrow.DataType) (arrow.ArrayData, error) {
	of := array.MakeFromData(d)
	defer of.Release()
	lists, ok := of.(array.ListLike)
	_, fixed := of.(*array.FixedSizeList)
	if !ok || !fixed && !hidesValues(lists) {
		return nil, nil
	}
	var pieces []arrow.Array
	offsets := array.NewInt64Builder(memory.DefaultAllocator)
	defer offsets.Release()
	total := int64(0) // number of values in all pieces
	// The current piece is the values [begun, next). At first there is none: no list begins at -1.
	begun, next := int64(0), int64(-1)
	cut := func() {
		if next > begun {
			pieces = append(pieces, array.NewSlice(lists.ListValues(), begun, next))
		}
	}
	offsets.Append(0)
	for i := range lists.Len() {
		if lists.IsValid(i) {
			lo, hi := lists.ValueOffsets(i)
			if lo != next {
				cut()
				begun = lo
			}
			next, total = hi, total+hi-lo
		}
		offsets.Append(total)
	}
	cut()
	return listOf(lists, to, offsets.NewInt64Array(), pieces)
}

// hidesValues reports whether a list that is null has values.
func hidesValues(lists array.ListLike) bool {
	if lists.NullN() == 0 {
		return false
	}
	for i := range lists.Len() {
		if lo, hi := lists.ValueOffsets(i); lists.IsNull(i) && lo != hi {
			return true
		}
	}
	return false
}

// listOf makes lists with the nulls of others, of values in pieces. It releases what it gets.
func listOf(nulls array.ListLike, to arrow.DataType, offsets *array.Int64, pieces []arrow.Array) (arrow.ArrayData, error) {
	defer offsets.Release()
	defer func() {
		for _, p := range pieces {
			p.Release()
		}
	}()
	if pieces == nil {
		pieces = []arrow.Array{array.NewSlice(nulls.ListValues(), 0, 0)}
	}
	values, err := array.Concatenate(pieces, memory.DefaultAllocator)
	if err != nil {
		return nil, err
	}
	defer values.Release()
	at := memory.NewBufferBytes(bytes.Clone(arrow.Int64Traits.CastToBytes(offsets.Int64Values())))
	if to.ID() != arrow.LARGE_LIST {
		short := make([]int32, offsets.Len())
		for i, v := range offsets.Int64Values() {
			short[i] = int32(v)
		}
		at = memory.NewBufferBytes(arrow.Int32Traits.CastToBytes(short))
	}
	valid := memory.NewBufferBytes(make([]byte, (nulls.Len()+7)/8))
	for i := range nulls.Len() {
		if nulls.IsValid(i) {
			valid.Bytes()[i>>3] |= 1 << (i & 7)
		}
	}
	return array.NewData(to, nulls.Len(), []*memory.Buffer{valid, at}, []arrow.ArrayData{values.Data()}, nulls.NullN(), 0), nil
}
