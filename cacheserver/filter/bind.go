// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"fmt"
	"slices"
	"strings"

	"github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
)

// check is a leaf bound to a column, with its literals converted to the column's type. BETWEEN is bound as two checks and LIKE as a
// range of strings, so op is neither of them.
type check struct {
	field  *field
	op     syntax.Operator
	values []iceberg.Literal
}

// binder binds the tests of a clause to columns.
type binder struct {
	text    string
	columns []*field
}

func (b *binder) bind(n syntax.Node) (syntax.Node, error) {
	switch n := n.(type) {
	case syntax.And:
		terms, err := b.bindAll(n.Terms)
		return syntax.And{Terms: terms}, err
	case syntax.Or:
		terms, err := b.bindAll(n.Terms)
		return syntax.Or{Terms: terms}, err
	case syntax.Not:
		term, err := b.bind(n.Term)
		return syntax.Not{Term: term}, err
	case syntax.Test:
		return b.test(n)
	}
	return n, nil
}

func (b *binder) bindAll(terms []syntax.Node) ([]syntax.Node, error) {
	bound := make([]syntax.Node, len(terms))
	for i, t := range terms {
		var err error
		if bound[i], err = b.bind(t); err != nil {
			return nil, err
		}
	}
	return bound, nil
}

func (b *binder) test(t syntax.Test) (syntax.Node, error) {
	f, err := b.column(t.Column)
	if err != nil {
		return nil, err
	}
	if err := b.suits(t, f); err != nil {
		return nil, err
	}
	values := make([]iceberg.Literal, len(t.Args))
	for i, arg := range t.Args {
		value, reason := Convert(arg, f.typ)
		if reason != "" {
			return nil, syntax.ErrorAt(b.text, arg.Start, "%s does not fit column %q of type %s: %s", syntax.Short(arg.String()), f.name, f.typ, reason)
		}
		values[i] = value
	}
	switch t.Op {
	case syntax.Between:
		return syntax.And{Terms: []syntax.Node{check{f, syntax.GreaterEqual, values[:1]}, check{f, syntax.LessEqual, values[1:]}}}, nil
	case syntax.Prefix:
		return prefixRange(f, t.Args[0].Value), nil
	}
	return check{f, t.Op, values}, nil
}

// suits rejects operators that the column's type does not support.
func (b *binder) suits(t syntax.Test, f *field) error {
	_, isBool := f.typ.(iceberg.BooleanType)
	_, isString := f.typ.(iceberg.StringType)
	switch {
	case f.hint != "":
		return syntax.ErrorAt(b.text, t.Column.Start, "column %q of type %s cannot be filtered by: %s", f.name, f.typ, f.hint)
	case len(t.Args) > 0 && t.Args[0].Bare && !isBool:
		return syntax.ErrorAt(b.text, t.Column.Start, "column %q of type %s needs a comparison: only a boolean column stands by itself", f.name, f.typ)
	case t.Op == syntax.IsNaN && !isFloat(f.typ):
		return syntax.ErrorAt(b.text, t.Column.Start, "column %q of type %s is never NAN: IS NAN is for float and double columns", f.name, f.typ)
	case t.Op == syntax.Prefix && !isString:
		return syntax.ErrorAt(b.text, t.Column.Start, "column %q of type %s has no LIKE, which is for string columns", f.name, f.typ)
	case t.Op.Orders() && isBool:
		return syntax.ErrorAt(b.text, t.Column.Start, "column %q of type %s has no %s: use = or <>", f.name, f.typ, t.Op)
	}
	return nil
}

func (b *binder) column(c syntax.Column) (*field, error) {
	name := strings.Join(c.Parts, ".")
	for _, f := range b.columns {
		if f.name == name {
			return f, nil
		}
	}
	return nil, syntax.ErrorAt(b.text, c.Start, "%s", unknown(name, b.columns))
}

// prefixRange binds LIKE 'p%' as a range of strings, from p up to the first string that sorts after all those with the prefix. UTF-8
// sorts by code point, so the upper bound is p with its last code point incremented.
func prefixRange(f *field, p string) syntax.Node {
	from := check{f, syntax.GreaterEqual, []iceberg.Literal{iceberg.StringLiteral(p)}}
	end, ok := successor(p)
	if !ok {
		return from
	}
	return syntax.And{Terms: []syntax.Node{from, check{f, syntax.Less, []iceberg.Literal{iceberg.StringLiteral(end)}}}}
}

// successor is the least string greater than all strings that start with p; ok is false if there is none.
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
