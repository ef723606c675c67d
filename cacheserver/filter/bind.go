// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
)

// binder binds the tests of a clause to columns.
type binder struct {
	text    string
	columns []*field
}

// bind binds a leaf.
func (b *binder) bind(n syntax.Node, negated bool) (syntax.Node, error) {
	t, ok := n.(syntax.Test)
	if !ok {
		return nil, fmt.Errorf("%T is no test", n)
	}
	bound, err := b.test(t)
	if negated {
		bound = syntax.Not{Term: bound}
	}
	return bound, err
}

func (b *binder) test(t syntax.Test) (syntax.Node, error) {
	f, err := b.column(t.Column)
	if err != nil {
		return nil, err
	}
	if err := b.suits(t, f); err != nil {
		return nil, err
	}
	values := make([]column.Value, len(t.Args))
	for i, arg := range t.Args {
		value, reason := column.Parse(arg, f.Type)
		if reason != "" {
			return nil, syntax.ErrorAt(b.text, arg.Start, "%s does not fit column %q of type %s: %s", syntax.Short(arg.String()), f.name, f.TypeName, reason)
		}
		values[i] = value
	}
	switch t.Op {
	case syntax.Between:
		return syntax.Join(false, f.test(syntax.GreaterEqual, values[0]), f.test(syntax.LessEqual, values[1])), nil
	case syntax.Prefix:
		return prefixRange(f, t.Args[0].Value), nil
	}
	return f.test(t.Op, values...), nil
}

// suits rejects operators that the column's type does not support.
func (b *binder) suits(t syntax.Test, f *field) error {
	isBool, isString := f.Type.ID() == arrow.BOOL, f.Type.ID() == arrow.STRING
	kind, _ := column.TypeOf(f.Type)
	switch {
	case f.hint != "":
		return syntax.ErrorAt(b.text, t.Column.Start, "column %q of type %s cannot be filtered by: %s", f.name, f.TypeName, f.hint)
	case len(t.Args) > 0 && t.Args[0].Bare && !isBool:
		return syntax.ErrorAt(b.text, t.Column.Start, "column %q of type %s needs a comparison: only a boolean column stands by itself", f.name, f.TypeName)
	case t.Op == syntax.IsNaN && kind.Kind != column.Float:
		return syntax.ErrorAt(b.text, t.Column.Start, "column %q of type %s is never NAN: IS NAN is for float and double columns", f.name, f.TypeName)
	case t.Op == syntax.Prefix && !isString:
		return syntax.ErrorAt(b.text, t.Column.Start, "column %q of type %s has no LIKE, which is for string columns", f.name, f.TypeName)
	case t.Op.Orders() && isBool:
		return syntax.ErrorAt(b.text, t.Column.Start, "column %q of type %s has no %s: use = or <>", f.name, f.TypeName, t.Op)
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
	from := f.test(syntax.GreaterEqual, column.BytesValue(p))
	end, ok := successor(p)
	if !ok {
		return from
	}
	return syntax.Join(false, from, f.test(syntax.Less, column.BytesValue(end)))
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
