// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package where

import (
	"fmt"
	"slices"
	"strings"

	"github.com/apache/iceberg-go"
)

// check is a leaf bound to a column, its literals in the column's type. A between is bound as two checks and
// a LIKE as a range of strings, so op is never one of those.
type check struct {
	field  *field
	op     operator
	values []iceberg.Literal
}

// binder turns tests into checks.
type binder struct {
	text    string
	columns []*field
}

func (b *binder) bind(n node) (node, error) {
	switch n := n.(type) {
	case andNode:
		terms, err := b.bindAll(n.terms)
		return andNode{terms}, err
	case orNode:
		terms, err := b.bindAll(n.terms)
		return orNode{terms}, err
	case notNode:
		term, err := b.bind(n.term)
		return notNode{term}, err
	case test:
		return b.test(n)
	}
	return n, nil
}

func (b *binder) bindAll(terms []node) ([]node, error) {
	bound := make([]node, len(terms))
	for i, t := range terms {
		var err error
		if bound[i], err = b.bind(t); err != nil {
			return nil, err
		}
	}
	return bound, nil
}

func (b *binder) test(t test) (node, error) {
	f, err := b.column(t.column)
	if err != nil {
		return nil, err
	}
	if err := b.suits(t, f); err != nil {
		return nil, err
	}
	values := make([]iceberg.Literal, len(t.args))
	for i, arg := range t.args {
		value, reason := convert(arg, f.typ)
		if reason != "" {
			return nil, errorAt(b.text, arg.start, "%s does not fit column %q of type %s: %s", short(arg.String()), f.name, f.typ, reason)
		}
		values[i] = value
	}
	switch t.op {
	case between:
		return andNode{[]node{check{f, greaterEqual, values[:1]}, check{f, lessEqual, values[1:]}}}, nil
	case prefix:
		return prefixRange(f, t.args[0].value), nil
	}
	return check{f, t.op, values}, nil
}

// suits refuses operators that the column's type does not have.
func (b *binder) suits(t test, f *field) error {
	_, isBool := f.typ.(iceberg.BooleanType)
	_, isString := f.typ.(iceberg.StringType)
	switch {
	case f.hint != "":
		return errorAt(b.text, t.column.start, "column %q of type %s cannot be filtered by: %s", f.name, f.typ, f.hint)
	case len(t.args) > 0 && t.args[0].bare && !isBool:
		return errorAt(b.text, t.column.start, "column %q of type %s needs a comparison: only a boolean column stands by itself", f.name, f.typ)
	case t.op == isNaN && !isFloat(f.typ):
		return errorAt(b.text, t.column.start, "column %q of type %s is never NAN: IS NAN is for float and double columns", f.name, f.typ)
	case t.op == prefix && !isString:
		return errorAt(b.text, t.column.start, "column %q of type %s has no LIKE, which is for string columns", f.name, f.typ)
	case t.op.orders() && isBool:
		return errorAt(b.text, t.column.start, "column %q of type %s has no %s: use = or <>", f.name, f.typ, t.op)
	}
	return nil
}

func (b *binder) column(c column) (*field, error) {
	name := strings.Join(c.parts, ".")
	for _, f := range b.columns {
		if f.name == name {
			return f, nil
		}
	}
	return nil, errorAt(b.text, c.start, "%s", unknown(name, b.columns))
}

// prefixRange is LIKE 'p%' as the range of strings from p up to the first that follows all with that prefix.
// UTF-8 sorts by code point, so that one is p with its last code point counted up.
func prefixRange(f *field, p string) node {
	from := check{f, greaterEqual, []iceberg.Literal{iceberg.StringLiteral(p)}}
	end, ok := successor(p)
	if !ok {
		return from
	}
	return andNode{[]node{from, check{f, less, []iceberg.Literal{iceberg.StringLiteral(end)}}}}
}

// successor is the least string greater than all strings that start with p, if there is one.
func successor(p string) (string, bool) {
	const surrogates, afterSurrogates, last = 0xD800, 0xE000, 0x10FFFF
	runes := []rune(p)
	for i, r := range slices.Backward(runes) {
		switch next := r + 1; {
		case r >= last:
			continue
		case next == surrogates:
			return string(runes[:i]) + string(rune(afterSurrogates)), true
		default:
			return fmt.Sprintf("%s%c", string(runes[:i]), next), true
		}
	}
	return "", false
}
