// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate

import (
	"testing"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
)

func TestCompile(t *testing.T) {
	i := func(op syntax.Operator, v int64) syntax.Node { return is("i", op, column.IntValue(v)) }
	l := func(v int64) syntax.Node { return is("l", syntax.Equal, column.IntValue(v)) }
	three := is("i", syntax.In, column.IntValue(3), column.IntValue(4))
	eq, neq, lt := syntax.Equal, syntax.NotEqual, syntax.Less
	for name, c := range map[string]struct {
		filter syntax.Node
		terms  int
		depth  int
	}{
		"one":                    {i(lt, 1), 1, 1},
		"none":                   {syntax.Const{}, 0, 1},
		"equalities by OR":       {or(i(eq, 1), i(eq, 2), three, i(eq, 1)), 1, 1},
		"inequalities by AND":    {and(i(neq, 1), i(neq, 2), not(three)), 1, 1},
		"equalities by AND":      {and(i(eq, 1), i(eq, 2)), 2, 2},
		"not equalities by OR":   {not(or(i(eq, 1), or(i(eq, 2), i(eq, 3)))), 1, 1},
		"of two columns":         {or(i(eq, 1), l(1), i(eq, 2), l(2)), 2, 2},
		"the same again":         {or(i(lt, 1), or(i(lt, 2), i(lt, 1))), 2, 2},
		"twice not":              {not(and(i(lt, 1), not(and(i(lt, 1), l(1))))), 3, 3},
		"a chain in one half":    {and(i(lt, 1), and(i(lt, 2), and(i(lt, 3), i(lt, 4)))), 4, 2},
		"a shared term":          {or(and(i(lt, 1), l(1)), and(i(lt, 1), l(2))), 3, 3},
		"a shared AND":           {or(and(i(lt, 1), or(l(1), i(lt, 3))), and(i(lt, 2), or(i(lt, 3), l(1)))), 4, 4},
		"and the other way":      {and(or(i(lt, 1), l(1)), or(l(1), i(lt, 1))), 2, 2},
		"true and false in them": {not(or(not(syntax.Const{Value: true}), i(lt, 1))), 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := compile(t, c.filter)
			if f.Terms() != c.terms || f.depth != c.depth {
				t.Errorf("%v has %d terms and a depth of %d, want %d and %d", c.filter, f.Terms(), f.depth, c.terms, c.depth)
			}
		})
	}
}

// TestNestingTakesABitmapALevel checks that a filter takes a kilobyte of memory for each level, whatever the number of its terms.
func TestNestingTakesABitmapALevel(t *testing.T) {
	lt := func(v int) syntax.Node { return is("i", syntax.Less, column.IntValue(int64(v))) }
	deep, wide := lt(0), lt(0)
	for level := range 100 {
		deep = and(lt(-level), or(lt(level), deep))
		wide = or(wide, lt(level))
	}
	for _, c := range []struct {
		filter syntax.Node
		most   int64
	}{{deep, 202 << 10}, {wide, 4 << 10}} {
		f := compile(t, c.filter)
		if f.Memory() > c.most {
			t.Errorf("%d terms take %d bytes, want at most %d", f.Terms(), f.Memory(), c.most)
		}
	}
}
