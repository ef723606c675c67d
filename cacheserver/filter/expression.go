// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
)

// selects returns the expression that selects the rows for which the node is true (want) or false (not want). It selects no row for
// which the node is NULL, for either want. So NOT needs no expression of its own, and the result doesn't depend on how a reader
// negates NULL.
func selects(n syntax.Node, want bool) iceberg.BooleanExpression {
	switch n := n.(type) {
	case syntax.And:
		return selectsAll(n.Terms, want, want)
	case syntax.Or:
		return selectsAll(n.Terms, want, !want)
	case syntax.Not:
		return selects(n.Term, !want)
	case check:
		return n.selects(want)
	case syntax.Const:
		if n.Value == want {
			return iceberg.AlwaysTrue{}
		}
	}
	return iceberg.AlwaysFalse{}
}

// selectsAll joins the expressions of the terms with AND if all is set, otherwise with OR.
func selectsAll(terms []syntax.Node, want, all bool) iceberg.BooleanExpression {
	expressions := make([]iceberg.BooleanExpression, len(terms))
	for i, t := range terms {
		expressions[i] = selects(t, want)
	}
	return balanced(expressions, all)
}

// balanced joins expressions as a balanced tree, since readers recurse into it.
func balanced(terms []iceberg.BooleanExpression, all bool) iceberg.BooleanExpression {
	if len(terms) == 1 {
		return terms[0]
	}
	left, right := balanced(terms[:len(terms)/2], all), balanced(terms[len(terms)/2:], all)
	if all {
		return iceberg.NewAnd(left, right)
	}
	return iceberg.NewOr(left, right)
}

func (c check) selects(want bool) iceberg.BooleanExpression {
	column := iceberg.Reference(c.field.name)
	switch c.op {
	case syntax.IsNull:
		if want {
			return iceberg.IsNull(column)
		}
		return iceberg.NotNull(column)
	case syntax.IsNaN:
		if want {
			return c.notNull(iceberg.IsNaN(column))
		}
		return iceberg.NewOr(iceberg.NotNaN(column), iceberg.IsNull(column))
	case syntax.In:
		return c.selectsSet(want)
	}
	return c.selectsComparison(want)
}

// selectsComparison negates a comparison by using the opposite operator. NaN satisfies neither an ordering operator nor its opposite.
func (c check) selectsComparison(want bool) iceberg.BooleanExpression {
	column := iceberg.Reference(c.field.name)
	op := c.operation()
	if !want {
		op = op.Negate()
	}
	expression := iceberg.LiteralPredicate(op, column, c.values[0])
	switch {
	case op == iceberg.OpNEQ:
		return c.notNull(expression)
	case !want && c.op.Orders() && isFloat(c.field.typ):
		return iceberg.NewOr(expression, c.notNull(iceberg.IsNaN(column)))
	}
	return expression
}

func (c check) operation() iceberg.Operation {
	switch c.op {
	case syntax.NotEqual:
		return iceberg.OpNEQ
	case syntax.Less:
		return iceberg.OpLT
	case syntax.LessEqual:
		return iceberg.OpLTEQ
	case syntax.Greater:
		return iceberg.OpGT
	case syntax.GreaterEqual:
		return iceberg.OpGTEQ
	}
	return iceberg.OpEQ
}

// selectsSet expands sets into comparisons where the row filter of iceberg-go v0.7.0 evaluates IN wrongly: it mixes up booleans and
// distinguishes 0.0 from -0.0.
func (c check) selectsSet(want bool) iceberg.BooleanExpression {
	op, single := iceberg.OpIn, iceberg.OpEQ
	if !want {
		op, single = iceberg.OpNotIn, iceberg.OpNEQ
	}
	column := iceberg.Reference(c.field.name)
	expression := iceberg.SetPredicate(op, column, c.values)
	switch c.field.typ.(type) {
	case iceberg.BooleanType, iceberg.Float32Type, iceberg.Float64Type:
		terms := make([]iceberg.BooleanExpression, len(c.values))
		for i, v := range c.values {
			terms[i] = iceberg.LiteralPredicate(single, column, v)
		}
		expression = balanced(terms, !want)
	}
	if want {
		return expression
	}
	return c.notNull(expression)
}

// notNull excludes NULL: Iceberg counts NULL as unequal to everything, and a reader may find an arbitrary value, such as a NaN, in
// the slot of a NULL.
func (c check) notNull(expression iceberg.BooleanExpression) iceberg.BooleanExpression {
	return iceberg.NewAnd(expression, iceberg.NotNull(iceberg.Reference(c.field.name)))
}
