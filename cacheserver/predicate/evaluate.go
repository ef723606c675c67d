// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package predicate evaluates a bound filter: Apply over the rows of Arrow arrays, MightMatch over the bounds of columns.
package predicate

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	ice "github.com/apache/iceberg-go"
)

// Bind binds a filter to a schema; a nil filter selects every row.
func Bind(schema *ice.Schema, unbound ice.BooleanExpression) (ice.BooleanExpression, error) {
	bound, err := ice.BindExpr(schema, unbound, true)
	if err != nil {
		return nil, err
	}
	if bound.Equals(ice.AlwaysTrue{}) {
		return nil, nil
	}
	return bound, nil
}

// Apply clears in m the rows for which a bound filter is not true; a nil filter is true for all rows. paths locates the fields that
// the filter compares, by field id.
func Apply(m *Mask, filter ice.BooleanExpression, paths map[int]Path, columns []arrow.Array) error {
	if filter == nil {
		return nil
	}
	truth, err := ice.VisitExpr(filter, &evaluator{columns: columns, paths: paths, n: m.N})
	if err != nil {
		return fmt.Errorf("filter: %w", err)
	}
	for i, is := range truth {
		if is != isTrue {
			m.Clear(i)
		}
	}
	return nil
}

// ternary is a truth value of SQL.
type ternary uint8

const (
	isFalse ternary = iota
	isTrue
	isUnknown
)

// truth has a truth value for every row of a batch.
type truth []ternary

// evaluator evaluates a bound filter over a batch. Comparisons with null are unknown; AND, OR and NOT follow Kleene's logic. It
// panics if a predicate can't be evaluated: iceberg-go's visitors convert that to an error.
type evaluator struct {
	columns []arrow.Array
	paths   map[int]Path
	n       int
}

var _ ice.BoundBooleanExprVisitor[truth] = (*evaluator)(nil)

func (e *evaluator) all(v ternary) truth {
	t := make(truth, e.n)
	for i := range t {
		t[i] = v
	}
	return t
}

func (e *evaluator) VisitTrue() truth  { return e.all(isTrue) }
func (e *evaluator) VisitFalse() truth { return e.all(isFalse) }

func (e *evaluator) VisitNot(child truth) truth {
	not := [...]ternary{isFalse: isTrue, isTrue: isFalse, isUnknown: isUnknown}
	for i, v := range child {
		child[i] = not[v]
	}
	return child
}

func (e *evaluator) VisitAnd(left, right truth) truth {
	for i, v := range right {
		switch {
		case left[i] == isFalse || v == isFalse:
			left[i] = isFalse
		case v == isUnknown:
			left[i] = isUnknown
		}
	}
	return left
}

func (e *evaluator) VisitOr(left, right truth) truth {
	for i, v := range right {
		switch {
		case left[i] == isTrue || v == isTrue:
			left[i] = isTrue
		case v == isUnknown:
			left[i] = isUnknown
		}
	}
	return left
}

func (e *evaluator) VisitUnbound(p ice.UnboundPredicate) truth {
	panic(fmt.Errorf("predicate %s is not bound", p))
}

func (e *evaluator) VisitBound(p ice.BoundPredicate) truth {
	return ice.VisitBoundPredicate(p, e)
}

// leaf returns the array of a term and a function that reports its nulls.
func (e *evaluator) leaf(term ice.BoundTerm) (arrow.Array, func(i int) bool) {
	ref, ok := term.(ice.BoundReference)
	if !ok {
		panic(fmt.Errorf("term %s is no column", term))
	}
	p, ok := e.paths[ref.Field().ID]
	if !ok {
		panic(fmt.Errorf("column %q was not read", ref.Field().Name))
	}
	leaf, parents := p.At(e.columns)
	if len(parents) == 0 {
		return leaf, leaf.IsNull
	}
	return leaf, func(i int) bool { return leaf.IsNull(i) || AnyNull(parents, i) }
}

// each evaluates is for every row that is not null; the others are unknown.
func (e *evaluator) each(isNull func(int) bool, is func(i int) bool) truth {
	t := make(truth, e.n)
	for i := range t {
		switch {
		case isNull(i):
			t[i] = isUnknown
		case is(i):
			t[i] = isTrue
		}
	}
	return t
}

func (e *evaluator) compare(term ice.BoundTerm, lit ice.Literal, is func(c int) bool) truth {
	leaf, isNull := e.leaf(term)
	v, err := FromLiteral(lit, term.Type())
	if err != nil {
		panic(fmt.Errorf("%s: %w", term, err))
	}
	c, err := cellComparer(leaf, v)
	if err != nil {
		panic(fmt.Errorf("%s: %w", term, err))
	}
	return e.each(isNull, func(i int) bool { return is(c(i)) })
}

func (e *evaluator) VisitEqual(t ice.BoundTerm, l ice.Literal) truth {
	return e.compare(t, l, func(c int) bool { return c == 0 })
}

func (e *evaluator) VisitNotEqual(t ice.BoundTerm, l ice.Literal) truth {
	return e.compare(t, l, func(c int) bool { return c != 0 })
}

func (e *evaluator) VisitLess(t ice.BoundTerm, l ice.Literal) truth {
	return e.compare(t, l, func(c int) bool { return c == -1 })
}

func (e *evaluator) VisitLessEqual(t ice.BoundTerm, l ice.Literal) truth {
	return e.compare(t, l, func(c int) bool { return c == -1 || c == 0 })
}

func (e *evaluator) VisitGreater(t ice.BoundTerm, l ice.Literal) truth {
	return e.compare(t, l, func(c int) bool { return c == 1 })
}

func (e *evaluator) VisitGreaterEqual(t ice.BoundTerm, l ice.Literal) truth {
	return e.compare(t, l, func(c int) bool { return c == 1 || c == 0 })
}

func (e *evaluator) VisitIn(term ice.BoundTerm, lits ice.Set[ice.Literal]) truth {
	leaf, isNull := e.leaf(term)
	get, kind, err := cells(leaf)
	if err != nil {
		panic(fmt.Errorf("%s: %w", term, err))
	}
	set := make(map[Value]struct{}, lits.Len())
	for _, l := range lits.Members() {
		v, err := FromLiteral(l, term.Type())
		if err == nil {
			err = v.Kind.is(kind)
		}
		if err != nil {
			panic(fmt.Errorf("%s: %w", term, err))
		}
		set[v] = struct{}{}
	}
	return e.each(isNull, func(i int) bool {
		_, ok := set[get(i)]
		return ok
	})
}

func (e *evaluator) VisitNotIn(t ice.BoundTerm, lits ice.Set[ice.Literal]) truth {
	return e.VisitNot(e.VisitIn(t, lits))
}

func (e *evaluator) VisitIsNull(term ice.BoundTerm) truth {
	_, isNull := e.leaf(term)
	t := make(truth, e.n)
	for i := range t {
		if isNull(i) {
			t[i] = isTrue
		}
	}
	return t
}

func (e *evaluator) VisitNotNull(t ice.BoundTerm) truth { return e.VisitNot(e.VisitIsNull(t)) }

func (e *evaluator) VisitIsNan(term ice.BoundTerm) truth {
	leaf, isNull := e.leaf(term)
	get, _, err := cells(leaf)
	if err != nil {
		panic(fmt.Errorf("%s: %w", term, err))
	}
	return e.each(isNull, func(i int) bool { v := get(i); return v.Compare(v) == unordered })
}

func (e *evaluator) VisitNotNan(t ice.BoundTerm) truth { return e.VisitNot(e.VisitIsNan(t)) }

func (e *evaluator) VisitStartsWith(term ice.BoundTerm, lit ice.Literal) truth {
	leaf, isNull := e.leaf(term)
	v, err := FromLiteral(lit, term.Type())
	s, ok := leaf.(interface{ Value(i int) string })
	if b, isBinary := leaf.(*array.Binary); isBinary {
		s, ok = binaryStrings{b}, true
	}
	if err != nil || !ok || v.Kind != KindBytes {
		panic(fmt.Errorf("%s of %s cannot be compared with a prefix", term, leaf.DataType()))
	}
	return e.each(isNull, func(i int) bool {
		cell := s.Value(i)
		return len(cell) >= len(v.Bytes) && cell[:len(v.Bytes)] == v.Bytes
	})
}

func (e *evaluator) VisitNotStartsWith(t ice.BoundTerm, l ice.Literal) truth {
	return e.VisitNot(e.VisitStartsWith(t, l))
}

type binaryStrings struct{ *array.Binary }

func (b binaryStrings) Value(i int) string { return b.ValueString(i) }
