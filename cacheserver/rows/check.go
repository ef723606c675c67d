// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
)

// matches returns an error that says how a type differs from the one that a node was laid out for. Dictionaries are treated as their
// values and extensions as their storage. Names of nested fields matter only in structs.
func matches(n *node, dt arrow.DataType) error {
	dt = storage(plainType(dt))
	k, width, ok := shape(dt)
	if !ok || k != n.kind || width != n.width {
		return fmt.Errorf("column %q is %s: the table's schema has %s", n.path, dt, n.typ)
	}
	nested, ok := dt.(arrow.NestedType)
	if !ok {
		if !arrow.TypeEqual(dt, n.typ) {
			return fmt.Errorf("column %q is %s: the table's schema has %s", n.path, dt, n.typ)
		}
		return nil
	}
	fields := nested.Fields()
	if len(fields) != len(n.kids) {
		return fmt.Errorf("column %q has %d fields: the table's schema has %d", n.path, len(fields), len(n.kids))
	}
	own := n.typ.(arrow.NestedType).Fields()
	for i, f := range fields {
		if k == kindStruct && f.Name != own[i].Name {
			return fmt.Errorf("column %q has field %q where the table's schema has %q", n.path, f.Name, own[i].Name)
		}
		if err := matches(n.kids[i], f.Type); err != nil {
			return err
		}
	}
	return nil
}

// decoded returns d with every dictionary array replaced by its values. The caller releases it.
func decoded(ctx context.Context, d arrow.ArrayData) (arrow.ArrayData, error) {
	dt := d.DataType()
	if !hasDictionary(dt) {
		d.Retain()
		return d, nil
	}
	if dt.ID() == arrow.DICTIONARY {
		dict := array.NewDictionaryData(d)
		defer dict.Release()
		plain, err := compute.TakeArray(ctx, dict.Dictionary(), dict.Indices())
		if err != nil {
			return nil, err
		}
		defer plain.Release()
		return decoded(ctx, plain.Data())
	}
	kids := make([]arrow.ArrayData, len(d.Children()))
	defer func() {
		for _, kid := range kids {
			if kid != nil {
				kid.Release()
			}
		}
	}()
	for i, kid := range d.Children() {
		var err error
		if kids[i], err = decoded(ctx, kid); err != nil {
			return nil, err
		}
	}
	return array.NewData(plainType(dt), d.Len(), d.Buffers(), kids, d.NullN(), d.Offset()), nil
}

// checker validates an array before its memory is read through unsafe pointers.
type checker struct {
	// dirty is set when a null slot has a value that is neither empty nor null. Fixed-width values don't count: they are zeroed when
	// they are copied.
	dirty bool
}

// check checks count slots of d, starting at slot from: the buffers must contain them and offsets must not decrease.
func (c *checker) check(n *node, d arrow.ArrayData, from, count int) error {
	at := from + d.Offset()
	if from < 0 || from+count > d.Len() {
		return fmt.Errorf("column %q: slots %d to %d of an array of %d", n.path, from, from+count, d.Len())
	}
	if n.kind == kindNull || count == 0 {
		return nil
	}
	if err := checkBuffers(n, d, at, count); err != nil {
		return err
	}
	nullable := hasNulls(n, d, at, count)
	if nullable && !c.dirty {
		c.dirty = dirty(n, d, at, count)
	}
	switch n.kind {
	case kindList:
		lo, hi := offsets(n, d, at, count)
		return c.check(n.kids[0], d.Children()[0], int(lo), int(hi-lo)) // fits: checkBuffers has compared them
	case kindFixedList:
		return c.check(n.kids[0], d.Children()[0], at*n.width, count*n.width) // fits: both are below 2^31
	case kindStruct:
		for i, kid := range n.kids {
			if err := c.check(kid, d.Children()[i], at, count); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkBuffers checks that the buffers contain count slots from slot at on, at least one, and that their offsets never decrease.
func checkBuffers(n *node, d arrow.ArrayData, at, count int) error {
	if len(d.Children()) != len(n.kids) {
		return fmt.Errorf("column %q has %d children: want %d", n.path, len(d.Children()), len(n.kids))
	}
	bitmapBytes := (at + count + 7) / 8
	if have := len(buffer(d, 0)); have > 0 && have < bitmapBytes {
		return short(n, "validity", have, bitmapBytes)
	}
	need := 0
	switch n.kind {
	case kindBool:
		need = bitmapBytes
	case kindFixed:
		need = (at + count) * n.width // fits: both are below 2^32
	case kindVar, kindList:
		need = (at + count + 1) * n.width // fits: both are below 2^33
	default:
		return nil
	}
	if have := len(buffer(d, 1)); have < need {
		return short(n, "values or offsets", have, need)
	}
	switch n.kind {
	case kindVar:
		return rising(n, d, at, count, len(buffer(d, 2)))
	case kindList:
		return rising(n, d, at, count, d.Children()[0].Len())
	}
	return nil
}

func short(n *node, what string, have, need int) error {
	return fmt.Errorf("column %q: %s of %d bytes, need %d: the array is broken", n.path, what, have, need)
}

// rising checks that the offsets of count slots start at 0 or above, never decrease and end within limit.
func rising(n *node, d arrow.ArrayData, at, count, limit int) error {
	lo, hi := offsets(n, d, at, count)
	p := start(d, 1, at*n.width) // fits: both are below 2^32
	var ok bool
	if n.width == 4 {
		ok = neverFalls(unsafe.Slice((*int32)(p), count+1))
	} else {
		ok = neverFalls(unsafe.Slice((*int64)(p), count+1))
	}
	if !ok || lo < 0 || hi > int64(limit) {
		return fmt.Errorf("column %q: offsets from %d to %d fall or pass %d: the array is broken", n.path, lo, hi, limit)
	}
	return nil
}

// neverFalls compares neighbours: their difference may not fit into O.
func neverFalls[O int32 | int64](offsets []O) bool {
	for i := 1; i < len(offsets); i++ {
		if offsets[i] < offsets[i-1] {
			return false
		}
	}
	return true
}
