// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// condition is a random WHERE clause: its text, and its value for a row as SQL defines it: 1 true, 0 false, -1 unknown.
type condition struct {
	text string
	eval func(row) int
}

func tell(b bool) int {
	if b {
		return 1
	}
	return 0
}

func not(v int) int {
	if v < 0 {
		return v
	}
	return 1 - v
}

// and implements SQL's truth table for AND.
func and(a, b int) int {
	switch {
	case a == 0 || b == 0:
		return 0
	case a == 1 && b == 1:
		return 1
	}
	return -1
}

func or(a, b int) int { return not(and(not(a), not(b))) }

// compare compares two values of a column; ordered is false if one is NaN.
func compare(a, b any) (order int, ordered bool) {
	switch a := a.(type) {
	case int64:
		return cmp.Compare(a, b.(int64)), true
	case string:
		return strings.Compare(a, b.(string)), true
	case bool:
		return cmp.Compare(tell(a), tell(b.(bool))), true
	case float64:
		b := b.(float64)
		return cmp.Compare(a, b), !math.IsNaN(a) && !math.IsNaN(b)
	}
	return 0, false
}

// holds evaluates "v op literal".
func holds(v any, op string, literal any) int {
	if v == nil {
		return -1
	}
	order, ordered := compare(v, literal)
	switch op {
	case "<":
		return tell(ordered && order < 0)
	case "<=":
		return tell(ordered && order <= 0)
	case ">":
		return tell(ordered && order > 0)
	case ">=":
		return tell(ordered && order >= 0)
	case "=", "==":
		return tell(ordered && order == 0)
	}
	return tell(!ordered || order != 0)
}

// literalOf draws a value of the column that can be written as a literal.
func literalOf(rng *rand.Rand, c source) any {
	for {
		v := c.values[rng.IntN(len(c.values))]
		if x, ok := v.(float64); !ok || !math.IsNaN(x) && !math.IsInf(x, 0) {
			return v
		}
	}
}

func randomClause(rng *rand.Rand, columns []source, depth int) condition {
	if depth > 0 {
		a, b := randomClause(rng, columns, depth-1), randomClause(rng, columns, rng.IntN(depth))
		switch rng.IntN(6) {
		case 0:
			return condition{"not (" + a.text + ")", func(r row) int { return not(a.eval(r)) }}
		case 1, 2:
			return condition{"(" + a.text + ") AND (" + b.text + ")", func(r row) int { return and(a.eval(r), b.eval(r)) }}
		case 3, 4:
			return condition{"(" + a.text + ") or (" + b.text + ")", func(r row) int { return or(a.eval(r), b.eval(r)) }}
		}
	}
	return randomTest(rng, columns[rng.IntN(len(columns))])
}

func randomTest(rng *rand.Rand, c source) condition {
	negate, word := func(v int) int { return v }, ""
	if rng.IntN(2) == 0 {
		negate, word = not, "NOT "
	}
	switch rng.IntN(8) {
	case 0:
		return condition{c.name + " IS " + word + "NULL", func(r row) int { return negate(tell(r[c.path] == nil)) }}
	case 1:
		return randomIn(rng, c, word, negate)
	case 2:
		if c.class == "bool" {
			return condition{word + c.name, func(r row) int { return negate(holds(r[c.path], "=", true)) }}
		}
		low, high := literalOf(rng, c), literalOf(rng, c)
		return condition{fmt.Sprintf("%s %sBETWEEN %s AND %s", c.name, word, c.text(low), c.text(high)), func(r row) int {
			return negate(and(holds(r[c.path], ">=", low), holds(r[c.path], "<=", high)))
		}}
	case 3:
		switch c.class {
		case "string":
			return randomLike(rng, c, word, negate)
		case "float":
			return condition{c.name + " is " + word + "nan", func(r row) int {
				x, ok := r[c.path].(float64)
				return negate(tell(ok && math.IsNaN(x)))
			}}
		}
	}
	ops := []string{"=", "==", "<>", "!=", "<", "<=", ">", ">="}
	if c.class == "bool" {
		ops = ops[:4]
	}
	op, v := ops[rng.IntN(len(ops))], literalOf(rng, c)
	if rng.IntN(3) == 0 {
		flipped := strings.NewReplacer("<>", "<>", "<", ">", ">", "<").Replace(op)
		return condition{c.text(v) + flipped + c.name, func(r row) int { return holds(r[c.path], op, v) }}
	}
	return condition{word + c.name + " " + op + c.text(v), func(r row) int { return negate(holds(r[c.path], op, v)) }}
}

func randomIn(rng *rand.Rand, c source, word string, negate func(int) int) condition {
	values, texts := []any{}, []string{}
	for range 1 + rng.IntN(4) {
		v := literalOf(rng, c)
		values, texts = append(values, v), append(texts, c.text(v))
	}
	return condition{c.name + " " + word + "IN (" + strings.Join(texts, ",") + ")", func(r row) int {
		found := 0
		for _, v := range values {
			found = or(found, holds(r[c.path], "=", v))
		}
		return negate(found)
	}}
}

func randomLike(rng *rand.Rand, c source, word string, negate func(int) int) condition {
	start := []rune(literalOf(rng, c).(string))
	start = start[:rng.IntN(len(start)+1)]
	pattern := strings.NewReplacer("!", "!!", "%", "!%", "_", "!_").Replace(string(start))
	return condition{c.name + " " + word + "LIKE " + quotedText(pattern+"%") + " escape '!'", func(r row) int {
		v, ok := r[c.path].(string)
		if !ok {
			return -1
		}
		return negate(tell(strings.HasPrefix(v, string(start))))
	}}
}

// wanted returns the ids of the rows for which the clause is true.
func wanted(rows []row, c condition) []int64 {
	ids := []int64{}
	for _, r := range rows {
		if c.eval(r) == 1 {
			ids = append(ids, r["id"].(int64))
		}
	}
	return ids
}

// TestFiltersEqualSQL compares filters with SQL's semantics over rows of every type.
func TestFiltersEqualSQL(t *testing.T) {
	rng := seedtest.New(t)
	columns, fields := sources(), allTypes()
	for range seedtest.Cases(800, 3000) {
		rows := randomRows(rng, columns, 0, 40)
		c := randomClause(rng, columns, rng.IntN(5))
		f, err := Parse(c.text, fields)
		if err != nil {
			t.Fatalf("%s: %v", c.text, err)
		}
		if diff := gocmp.Diff(wanted(rows, c), selected(t, f, rows)); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", c.text, diff)
		}
	}
}
