// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package predicate evaluates a filter over the rows of Arrow arrays and over the bounds of columns.
//
// A filter is a tree of package syntax whose leaves are Tests of columns. It is compiled before it is evaluated.
package predicate

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/bitutil"

	"github.com/kubeflow/datacache/cacheserver/column"
)

// blockRows is the number of rows that a filter is evaluated over at a time, so that its memory depends neither on the number of rows
// of a batch nor, beyond a bitmap for each level of AND and OR, on the filter.
const blockRows = 8192

// Evaluator evaluates a filter over batches of rows. Only one goroutine may use it. Make it with Filter.Evaluator.
type Evaluator struct {
	filter *Filter
	paths  []column.Path // of the filter's fields
	stack  []bitmap      // by level
	kept   []bitmap      // by slot; the first one is not used
	known  []bool        // by slot: kept has the bitmap of this block
	valid  bitmap
}

// Evaluator returns a new evaluator, which takes the filter's Memory. paths locates Fields, in their order.
func (f *Filter) Evaluator(paths []column.Path) *Evaluator {
	if f == nil {
		return &Evaluator{}
	}
	return &Evaluator{filter: f, paths: paths, stack: make([]bitmap, f.depth), kept: make([]bitmap, f.slots+1), known: make([]bool, f.slots+1)}
}

// Apply clears in m the rows for which the filter is not true.
func (e *Evaluator) Apply(m *Mask, columns []arrow.Array) error {
	if e.filter == nil {
		return nil
	}
	for lo := 0; lo < m.N; lo += blockRows {
		b := rows{columns: columns, lo: lo, n: min(blockRows, m.N-lo)}
		clear(e.known)
		if err := e.evaluate(e.filter.root, 0, b); err != nil {
			return fmt.Errorf("filter: %w", err)
		}
		e.stack[0].andInto(m.Bits[lo/8:], b.n)
	}
	return nil
}

// rows are rows [lo, lo+n) of a batch, at most blockRows.
type rows struct {
	columns []arrow.Array
	lo, n   int
}

// evaluate sets the bitmap of a level to the rows for which a node is true. It uses those of the levels above.
func (e *Evaluator) evaluate(n *node, level int, b rows) (err error) {
	out := &e.stack[level]
	if e.known[n.slot] {
		*out = e.kept[n.slot]
		return nil
	}
	switch n.op {
	case opTrue, opFalse:
		out.fill(n.op == opTrue)
	case opAll, opAny:
		err = e.chain(n, level, b)
	default:
		err = e.term(n.term, out, b)
	}
	if n.slot > 0 && err == nil {
		e.kept[n.slot], e.known[n.slot] = *out, true
	}
	return err
}

// chain evaluates an AND or OR until its result can't change any more.
func (e *Evaluator) chain(n *node, level int, b rows) error {
	out := &e.stack[level]
	if err := e.evaluate(n.kids[0], level, b); err != nil {
		return err
	}
	for _, kid := range n.kids[1:] {
		if out.all(n.op == opAny, b.n) {
			return nil
		}
		if err := e.evaluate(kid, level+1, b); err != nil {
			return err
		}
		if n.op == opAll {
			out.and(&e.stack[level+1])
		} else {
			out.or(&e.stack[level+1])
		}
	}
	return nil
}

// term evaluates a term.
func (e *Evaluator) term(t *term, out *bitmap, b rows) error {
	leaf, parents := e.paths[t.at].At(b.columns)
	nullable := e.setValid(leaf, parents, b)
	if t.test == isNull {
		if *out = e.valid; !t.negated {
			out.invert()
		}
		return nil
	}
	if err := t.evaluate(leaf, b.lo, b.n, out); err != nil {
		return fmt.Errorf("column %q: %w", t.field.Name, err)
	}
	if t.negated {
		out.invert()
	}
	if nullable {
		out.and(&e.valid)
	}
	return nil
}

// setValid sets valid to the rows where the leaf and the structs that contain it are not null, and reports whether one may be null.
func (e *Evaluator) setValid(leaf arrow.Array, parents []arrow.Array, b rows) (nullable bool) {
	e.valid.fill(true)
	for _, a := range append(parents, leaf) {
		if bits := a.NullBitmapBytes(); len(bits) > 0 {
			var own bitmap
			bitutil.CopyBitmap(bits, a.Data().Offset()+b.lo, b.n, own.bytes(), 0)
			e.valid.and(&own)
			nullable = true
		}
	}
	return nullable
}
