// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate

import (
	"slices"

	"github.com/kubeflow/datacache/cacheserver/column"
)

// Bounds holds what is known about the values of one column. The zero value means that nothing is known.
type Bounds struct {
	Min, Max column.Value // minimum and maximum
	Known    bool         // Min and Max are valid
	Nulls    int64
	Counted  bool // nulls is
	Values   int64
	Single   bool // every value that is not null equals Min
	NoNaN    bool // no value is NaN
}

// Single returns the bounds of a column whose only value is v.
func Single(v column.Value) Bounds {
	nan := v.Compare(v) == column.Unordered
	return Bounds{Min: v, Max: v, Known: !nan, Single: true, NoNaN: !nan, Counted: true, Values: 1}
}

// allNull reports whether all values are known to be null, so that no comparison can be true.
func (b Bounds) allNull() bool { return b.Counted && b.Nulls == b.Values }

// is reports whether v is known to equal every value that is not null.
func (b Bounds) is(v column.Value) bool {
	return b.Single && v.Kind == b.Min.Kind && b.Min.Compare(v) == 0
}

// includes reports whether v is within the bounds, which must be Known.
func (b Bounds) includes(v column.Value) bool { return b.Min.Compare(v) <= 0 && b.Max.Compare(v) >= 0 }

// MightMatch reports whether the filter may be true for a row, judging by the bounds of the fields that it compares.
func (f *Filter) MightMatch(of func(column.Field) Bounds) bool {
	return f == nil || f.root.mightMatch(of)
}

func (n *node) mightMatch(of func(column.Field) Bounds) bool {
	might := func(kid *node) bool { return kid.mightMatch(of) }
	switch n.op {
	case opTrue, opFalse:
		return n.op == opTrue
	case opAll:
		return !slices.ContainsFunc(n.kids, func(kid *node) bool { return !might(kid) })
	case opAny:
		return slices.ContainsFunc(n.kids, might)
	}
	return n.term.mightMatch(of(n.term.field))
}

func (t *term) mightMatch(b Bounds) bool {
	switch {
	case t.test == isNull && !t.negated:
		return !b.Counted || b.Nulls > 0
	case b.allNull():
		return false
	case t.test == isNaN:
		return t.negated || !b.NoNaN
	case t.test == isIn && t.negated:
		return !slices.ContainsFunc(t.values, b.is)
	case t.test == isNull || !b.Known || t.values[0].Kind != b.Min.Kind:
		return true
	case t.test == isIn:
		return slices.ContainsFunc(t.values, b.includes)
	}
	return t.accepts(b.Min.Compare(t.values[0])) || t.accepts(b.Max.Compare(t.values[0]))
}

// AlwaysMatches reports whether the bounds of the fields that the filter compares prove that it is true for all rows.
func (f *Filter) AlwaysMatches(of func(column.Field) Bounds) bool {
	return f == nil || f.root.alwaysMatches(of)
}

func (n *node) alwaysMatches(of func(column.Field) Bounds) bool {
	always := func(kid *node) bool { return kid.alwaysMatches(of) }
	switch n.op {
	case opTrue, opFalse:
		return n.op == opTrue
	case opAll:
		return !slices.ContainsFunc(n.kids, func(kid *node) bool { return !always(kid) })
	case opAny:
		return slices.ContainsFunc(n.kids, always)
	}
	return n.term.alwaysMatches(of(n.term.field))
}

func (t *term) alwaysMatches(b Bounds) bool {
	noNull := b.Counted && b.Nulls == 0
	switch {
	case t.test == isNull && !t.negated:
		return b.allNull()
	case t.test == isNull || !noNull:
		return noNull
	case t.test == isNaN:
		return t.negated && b.NoNaN
	case !b.Known || t.values[0].Kind != b.Min.Kind || b.Min.Kind == column.Float && !b.NoNaN:
		return false
	case t.test == isIn && t.negated:
		return !slices.ContainsFunc(t.values, b.includes)
	case t.test == isIn:
		return b.Min.Compare(b.Max) == 0 && slices.ContainsFunc(t.values, func(v column.Value) bool { return b.Min.Compare(v) == 0 })
	}
	return t.accepts(b.Min.Compare(t.values[0])) && t.accepts(b.Max.Compare(t.values[0]))
}
