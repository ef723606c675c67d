// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate

import (
	"testing"

	ice "github.com/apache/iceberg-go"
)

func TestCompile(t *testing.T) {
	i := func(op ice.Operation, v int32) ice.BooleanExpression {
		return ice.LiteralPredicate(op, ice.Reference("i"), ice.NewLiteral(v))
	}
	l := func(v int64) ice.BooleanExpression {
		return ice.LiteralPredicate(ice.OpEQ, ice.Reference("l"), ice.NewLiteral(v))
	}
	in := func(op ice.Operation, values ...int32) ice.BooleanExpression {
		literals := make([]ice.Literal, len(values))
		for at, v := range values {
			literals[at] = ice.NewLiteral(v)
		}
		return ice.SetPredicate(op, ice.Reference("i"), literals)
	}
	eq, neq, lt := ice.OpEQ, ice.OpNEQ, ice.OpLT
	for name, c := range map[string]struct {
		filter ice.BooleanExpression
		terms  int
		depth  int
	}{
		"one":                    {i(lt, 1), 1, 1},
		"none":                   {ice.AlwaysFalse{}, 0, 1},
		"equalities by OR":       {ice.NewOr(i(eq, 1), i(eq, 2), in(ice.OpIn, 3, 4), i(eq, 1)), 1, 1},
		"inequalities by AND":    {ice.NewAnd(i(neq, 1), i(neq, 2), in(ice.OpNotIn, 3, 4)), 1, 1},
		"equalities by AND":      {ice.NewAnd(i(eq, 1), i(eq, 2)), 2, 2},
		"not equalities by OR":   {ice.NewNot(ice.NewOr(i(eq, 1), ice.NewOr(i(eq, 2), i(eq, 3)))), 1, 1},
		"of two columns":         {ice.NewOr(i(eq, 1), l(1), i(eq, 2), l(2)), 2, 2},
		"the same again":         {ice.NewOr(i(lt, 1), ice.NewOr(i(lt, 2), i(lt, 1))), 2, 2},
		"twice not":              {ice.NewNot(ice.NewAnd(i(lt, 1), ice.NewNot(ice.NewAnd(i(lt, 1), l(1))))), 3, 3},
		"a chain in one half":    {ice.NewAnd(i(lt, 1), ice.NewAnd(i(lt, 2), ice.NewAnd(i(lt, 3), i(lt, 4)))), 4, 2},
		"a shared term":          {ice.NewOr(ice.NewAnd(i(lt, 1), l(1)), ice.NewAnd(i(lt, 1), l(2))), 3, 3},
		"a shared AND":           {ice.NewOr(ice.NewAnd(i(lt, 1), ice.NewOr(l(1), i(lt, 3))), ice.NewAnd(i(lt, 2), ice.NewOr(i(lt, 3), l(1)))), 4, 4},
		"and the other way":      {ice.NewAnd(ice.NewOr(i(lt, 1), l(1)), ice.NewOr(l(1), i(lt, 1))), 2, 2},
		"true and false in them": {ice.NewNot(ice.NewOr(ice.NewNot(ice.AlwaysTrue{}), i(lt, 1))), 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Compile(bind(t, c.filter), paths())
			if err != nil {
				t.Fatal(err)
			}
			if f.Terms() != c.terms || f.depth != c.depth {
				t.Errorf("%s has %d terms and a depth of %d, want %d and %d", c.filter, f.Terms(), f.depth, c.terms, c.depth)
			}
		})
	}
}

// TestNestingTakesABitmapALevel checks that a filter takes a kilobyte of memory for each level, whatever the number of its terms.
func TestNestingTakesABitmapALevel(t *testing.T) {
	lt := func(v int) ice.BooleanExpression {
		return ice.LiteralPredicate(ice.OpLT, ice.Reference("i"), ice.NewLiteral(int32(v)))
	}
	deep, wide := lt(0), lt(0)
	for level := range 100 {
		deep = ice.NewAnd(lt(-level), ice.NewOr(lt(level), deep))
		wide = ice.NewOr(wide, lt(level))
	}
	for _, c := range []struct {
		filter ice.BooleanExpression
		most   int64
	}{{deep, 202 << 10}, {wide, 4 << 10}} {
		f, err := Compile(bind(t, c.filter), paths())
		if err != nil {
			t.Fatal(err)
		}
		if f.Memory() > c.most {
			t.Errorf("%d terms take %d bytes, want at most %d", f.Terms(), f.Memory(), c.most)
		}
	}
}
