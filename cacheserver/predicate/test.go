// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate

import (
	"fmt"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
)

// Test is a leaf of a filter's tree: a test of one column. Values are of the kind of the column's type; Op is neither Between nor Prefix.
// Except for IsNull and IsNaN, no test is true for a null, whether it is negated or not.
type Test struct {
	Field   column.Field
	Op      syntax.Operator
	Negated bool
	Values  []column.Value
}

// opposites are the operators that are true where others are false, unless the value is null or NaN.
var opposites = map[syntax.Operator]syntax.Operator{
	syntax.Less: syntax.GreaterEqual, syntax.GreaterEqual: syntax.Less, syntax.Greater: syntax.LessEqual, syntax.LessEqual: syntax.Greater,
}

// normal returns an equivalent tree without Not, whose leaves are Tests. Only those of equality, IsNull and IsNaN are negated in it.
func normal(tree syntax.Node) (syntax.Node, error) {
	return syntax.Replace(tree, func(n syntax.Node, negated bool) (syntax.Node, error) {
		t, ok := n.(Test)
		if !ok {
			return nil, fmt.Errorf("a %T is not bound to columns", n)
		}
		t.Negated = t.Negated != negated
		return t.normal(), nil
	})
}

func (t Test) normal() syntax.Node {
	opposite := opposites[t.Op]
	switch {
	case t.Op == syntax.NotEqual:
		t.Op, t.Negated = syntax.Equal, !t.Negated
	case t.Negated && t.Op == syntax.IsNaN:
		return syntax.Join(true, t, Test{Field: t.Field, Op: syntax.IsNull})
	case t.Negated && opposite != "":
		other := Test{Field: t.Field, Op: opposite, Values: t.Values}
		if t.Values[0].Kind != column.Float {
			return other
		}
		return syntax.Join(true, other, Test{Field: t.Field, Op: syntax.IsNaN})
	}
	return t
}
