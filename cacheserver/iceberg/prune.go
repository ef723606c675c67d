// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"strings"

	ice "github.com/apache/iceberg-go"
)

// mightMatch reports whether a row may pass a bound filter, as far as the bounds
// of the columns that it compares tell. In doubt it may.
func mightMatch(filter ice.BooleanExpression, of func(ice.NestedField) bounds) bool {
	plain, err := ice.RewriteNotExpr(filter)
	if err != nil {
		return true
	}
	might, err := ice.VisitExpr(plain, pruner(of))
	return might || err != nil
}

// pruner computes whether a bound filter may be true for a row of columns with some bounds.
type pruner func(ice.NestedField) bounds

var _ ice.BoundBooleanExprVisitor[bool] = pruner(nil)

// bounds is what is known of the values of one column. The zero value tells nothing.
type bounds struct {
	lo, hi  value // minimum and maximum
	known   bool  // lo and hi are
	nulls   int64
	counted bool // nulls is
	values  int64
}

// allNull reports whether no comparison can be true.
func (b bounds) allNull() bool { return b.counted && b.nulls == b.values }

// of returns the bounds of a term's column.
func (p pruner) of(term ice.BoundTerm) bounds {
	ref, ok := term.(ice.BoundReference)
	if !ok {
		return bounds{}
	}
	return p(ref.Field())
}

// compare reports whether a row may satisfy a comparison with a literal: might
// is asked with how the column's minimum and maximum compare with it.
func (p pruner) compare(term ice.BoundTerm, lit ice.Literal, might func(lo, hi int) bool) bool {
	b := p.of(term)
	if b.allNull() {
		return false
	}
	v, err := literalValue(lit, term.Type())
	if err != nil || !b.known || v.kind != b.lo.kind || v.compare(v) == unordered {
		return true
	}
	return might(b.lo.compare(v), b.hi.compare(v))
}

func (p pruner) VisitTrue() bool                        { return true }
func (p pruner) VisitFalse() bool                       { return false }
func (p pruner) VisitNot(bool) bool                     { return true } // RewriteNotExpr leaves none
func (p pruner) VisitAnd(left, right bool) bool         { return left && right }
func (p pruner) VisitOr(left, right bool) bool          { return left || right }
func (p pruner) VisitUnbound(ice.UnboundPredicate) bool { return true }

func (p pruner) VisitBound(b ice.BoundPredicate) bool { return ice.VisitBoundPredicate(b, p) }

func (p pruner) VisitEqual(t ice.BoundTerm, l ice.Literal) bool {
	return p.compare(t, l, func(lo, hi int) bool { return lo <= 0 && hi >= 0 })
}

func (p pruner) VisitNotEqual(t ice.BoundTerm, _ ice.Literal) bool { return !p.of(t).allNull() }

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

func (p pruner) VisitNotIn(t ice.BoundTerm, _ ice.Set[ice.Literal]) bool { return !p.of(t).allNull() }

func (p pruner) VisitIsNull(t ice.BoundTerm) bool {
	b := p.of(t)
	return !b.counted || b.nulls > 0
}

func (p pruner) VisitNotNull(t ice.BoundTerm) bool { return !p.of(t).allNull() }
func (p pruner) VisitIsNan(t ice.BoundTerm) bool   { return !p.of(t).allNull() }
func (p pruner) VisitNotNan(t ice.BoundTerm) bool  { return !p.of(t).allNull() }

func (p pruner) VisitStartsWith(t ice.BoundTerm, l ice.Literal) bool {
	b := p.of(t)
	prefix, err := literalValue(l, t.Type())
	if err != nil || !b.known || b.lo.kind != kindBytes || prefix.kind != kindBytes {
		return !b.allNull()
	}
	return b.hi.bytes >= prefix.bytes && (b.lo.bytes <= prefix.bytes || strings.HasPrefix(b.lo.bytes, prefix.bytes))
}

func (p pruner) VisitNotStartsWith(t ice.BoundTerm, _ ice.Literal) bool { return !p.of(t).allNull() }
