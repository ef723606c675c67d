// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate

import (
	"slices"
	"strings"

	ice "github.com/apache/iceberg-go"
)

// MightMatch reports whether a row may satisfy a bound filter, judging by the bounds of the columns that the filter compares. If it
// can't tell, it returns true, and so it does for NOT, which package filter never produces.
func MightMatch(filter ice.BooleanExpression, of func(ice.NestedField) Bounds) bool {
	might, err := ice.VisitExpr(filter, pruner(of))
	return might || err != nil
}

// pruner evaluates whether a bound filter may be true for a row, given the bounds of its columns.
type pruner func(ice.NestedField) Bounds

var _ ice.BoundBooleanExprVisitor[bool] = pruner(nil)

// Bounds holds what is known about the values of one column. The zero value means that nothing is known.
type Bounds struct {
	Min, Max Value // minimum and maximum
	Known    bool  // Min and Max are valid
	Nulls    int64
	Counted  bool // nulls is
	Values   int64
	Single   bool // every value that is not null equals Min
	NoNaN    bool // no value is NaN
}

// Single returns the bounds of a column whose only value is v.
func Single(v Value) Bounds {
	nan := v.Compare(v) == unordered
	return Bounds{Min: v, Max: v, Known: !nan, Single: true, NoNaN: !nan, Counted: true, Values: 1}
}

// allNull reports whether all values are known to be null, so that no comparison can be true.
func (b Bounds) allNull() bool { return b.Counted && b.Nulls == b.Values }

// is reports whether a literal of a column of type t is known to equal every value that is not null.
func (b Bounds) is(l ice.Literal, t ice.Type) bool {
	v, err := FromLiteral(l, t)
	return err == nil && b.Single && v.Kind == b.Min.Kind && b.Min.Compare(v) == 0
}

// of returns the bounds of the column of a term.
func (p pruner) of(term ice.BoundTerm) Bounds {
	ref, ok := term.(ice.BoundReference)
	if !ok {
		return Bounds{}
	}
	return p(ref.Field())
}

// compare reports whether a row may satisfy a comparison with a literal. might gets the results of comparing the column's minimum and
// maximum with the literal.
func (p pruner) compare(term ice.BoundTerm, lit ice.Literal, might func(lo, hi int) bool) bool {
	b := p.of(term)
	if b.allNull() {
		return false
	}
	v, err := FromLiteral(lit, term.Type())
	if err != nil || !b.Known || v.Kind != b.Min.Kind || v.Compare(v) == unordered {
		return true
	}
	return might(b.Min.Compare(v), b.Max.Compare(v))
}

func (p pruner) VisitTrue() bool                        { return true }
func (p pruner) VisitFalse() bool                       { return false }
func (p pruner) VisitNot(bool) bool                     { return true } // NOT (x > 1) is true for NaN, unlike x <= 1
func (p pruner) VisitAnd(left, right bool) bool         { return left && right }
func (p pruner) VisitOr(left, right bool) bool          { return left || right }
func (p pruner) VisitUnbound(ice.UnboundPredicate) bool { return true }

func (p pruner) VisitBound(b ice.BoundPredicate) bool { return ice.VisitBoundPredicate(b, p) }

func (p pruner) VisitEqual(t ice.BoundTerm, l ice.Literal) bool {
	return p.compare(t, l, func(lo, hi int) bool { return lo <= 0 && hi >= 0 })
}

func (p pruner) VisitNotEqual(t ice.BoundTerm, l ice.Literal) bool {
	b := p.of(t)
	return !b.allNull() && !b.is(l, t.Type())
}

func (p pruner) VisitLess(t ice.BoundTerm, l ice.Literal) bool {
	return p.compare(t, l, func(lo, _ int) bool { return lo < 0 })
}

func (p pruner) VisitLessEqual(t ice.BoundTerm, l ice.Literal) bool {
	return p.compare(t, l, func(lo, _ int) bool { return lo <= 0 })
}

func (p pruner) VisitGreater(t ice.BoundTerm, l ice.Literal) bool {
	return p.compare(t, l, func(_, hi int) bool { return hi > 0 })
}

func (p pruner) VisitGreaterEqual(t ice.BoundTerm, l ice.Literal) bool {
	return p.compare(t, l, func(_, hi int) bool { return hi >= 0 })
}

func (p pruner) VisitIn(t ice.BoundTerm, lits ice.Set[ice.Literal]) bool {
	for _, l := range lits.Members() {
		if p.VisitEqual(t, l) {
			return true
		}
	}
	return false
}

func (p pruner) VisitNotIn(t ice.BoundTerm, lits ice.Set[ice.Literal]) bool {
	b := p.of(t)
	return !b.allNull() && !slices.ContainsFunc(lits.Members(), func(l ice.Literal) bool { return b.is(l, t.Type()) })
}

func (p pruner) VisitIsNull(t ice.BoundTerm) bool {
	b := p.of(t)
	return !b.Counted || b.Nulls > 0
}

func (p pruner) VisitNotNull(t ice.BoundTerm) bool { return !p.of(t).allNull() }
func (p pruner) VisitIsNan(t ice.BoundTerm) bool   { return !p.of(t).allNull() && !p.of(t).NoNaN }
func (p pruner) VisitNotNan(t ice.BoundTerm) bool  { return !p.of(t).allNull() }

func (p pruner) VisitStartsWith(t ice.BoundTerm, l ice.Literal) bool {
	b := p.of(t)
	prefix, err := FromLiteral(l, t.Type())
	if err != nil || !b.Known || b.Min.Kind != KindBytes || prefix.Kind != KindBytes {
		return !b.allNull()
	}
	return b.Max.Bytes >= prefix.Bytes && (b.Min.Bytes <= prefix.Bytes || strings.HasPrefix(b.Min.Bytes, prefix.Bytes))
}

func (p pruner) VisitNotStartsWith(t ice.BoundTerm, _ ice.Literal) bool { return !p.of(t).allNull() }
