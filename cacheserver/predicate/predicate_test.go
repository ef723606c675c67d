// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	ice "github.com/apache/iceberg-go"
)

// ternary is a truth value of SQL.
type ternary uint8

const (
	isFalse ternary = iota
	isTrue
	isUnknown
)

// apply clears in m the rows for which a bound filter is not true.
func apply(m *Mask, bound ice.BooleanExpression, paths map[int]Path, columns []arrow.Array) error {
	f, err := Compile(bound, paths)
	if err != nil {
		return err
	}
	return f.Evaluator().Apply(m, columns)
}

// condition is a filter and a function that computes its value for a row independently.
type condition struct {
	filter ice.BooleanExpression
	says   func(row) ternary
}

// row has a cell for every column: the index of its value among the column's values, or one of the constants below.
type row []int

const (
	null = -1
	nan  = -2
)

// randomCondition returns random comparisons joined by AND, OR and NOT.
func randomCondition(rng *rand.Rand, depth int) condition {
	if depth == 0 || rng.IntN(3) == 0 {
		return randomTest(rng, rng.IntN(len(columns)))
	}
	a := randomCondition(rng, depth-1)
	if rng.IntN(3) == 0 {
		return condition{ice.NewNot(a.filter), func(r row) ternary {
			return [...]ternary{isFalse: isTrue, isTrue: isFalse, isUnknown: isUnknown}[a.says(r)]
		}}
	}
	b := randomCondition(rng, depth-1)
	if rng.IntN(4) == 0 {
		return randomChain(rng)
	}
	return joined(a, b, rng.IntN(2) == 0)
}

// randomChain returns tests of a column joined by AND or OR, some of them several times.
func randomChain(rng *rand.Rand) condition {
	at, or := rng.IntN(len(columns)), rng.IntN(2) == 0
	tests := make([]condition, 3)
	for i := range tests {
		tests[i] = randomTest(rng, at)
	}
	chain := tests[0]
	for range 1 + rng.IntN(8) {
		chain = joined(chain, tests[rng.IntN(len(tests))], or)
		if rng.IntN(3) == 0 {
			chain = joined(chain, randomTest(rng, at), or)
		}
	}
	return chain
}

// joined returns a OR b, or a AND b.
func joined(a, b condition, or bool) condition {
	// SQL's truth tables of AND and OR, in the order false, true, unknown for both sides.
	join, table := ice.NewAnd(a.filter, b.filter), [3][3]ternary{{isFalse, isFalse, isFalse}, {isFalse, isTrue, isUnknown}, {isFalse, isUnknown, isUnknown}}
	if or {
		join, table = ice.NewOr(a.filter, b.filter), [3][3]ternary{{isFalse, isTrue, isUnknown}, {isTrue, isTrue, isTrue}, {isUnknown, isTrue, isUnknown}}
	}
	return condition{join, func(r row) ternary { return table[a.says(r)][b.says(r)] }}
}

// operations compare a cell with a literal; both are given by their index among the column's ascending values.
var operations = []struct {
	op ice.Operation
	is func(cell, literal int) bool
}{
	{ice.OpEQ, func(c, l int) bool { return c == l }},
	{ice.OpNEQ, func(c, l int) bool { return c != l }}, // true for NaN too
	{ice.OpLT, func(c, l int) bool { return c != nan && c < l }},
	{ice.OpLTEQ, func(c, l int) bool { return c != nan && c <= l }},
	{ice.OpGT, func(c, l int) bool { return c != nan && c > l }},
	{ice.OpGTEQ, func(c, l int) bool { return c != nan && c >= l }},
}

// randomTest returns a random comparison of a column.
func randomTest(rng *rand.Rand, at int) condition {
	c := columns[at]
	literal := func() int { return rng.IntN(len(c.values)) }
	known := func(is func(cell int) bool) func(row) ternary {
		return func(r row) ternary {
			if r[at] == null {
				return isUnknown
			}
			return tell(is(r[at]))
		}
	}
	ref := ice.Reference(c.name)
	switch n := rng.IntN(10); {
	case n < 5:
		o, l := operations[rng.IntN(len(operations))], literal()
		return condition{ice.LiteralPredicate(o.op, ref, c.values[l]), known(func(cell int) bool { return o.is(cell, l) })}
	case n < 7:
		set := []int{literal(), literal(), literal()}
		lits := []ice.Literal{c.values[set[0]], c.values[set[1]], c.values[set[2]]}
		if n == 5 {
			return condition{ice.SetPredicate(ice.OpNotIn, ref, lits), known(func(cell int) bool { return !slices.Contains(set, cell) })}
		}
		return condition{ice.SetPredicate(ice.OpIn, ref, lits), known(func(cell int) bool { return slices.Contains(set, cell) })}
	case n == 7 && c.prefix != nil:
		op, l, want := ice.OpStartsWith, literal(), true
		if rng.IntN(2) == 0 {
			op, want = ice.OpNotStartsWith, false
		}
		return condition{ice.LiteralPredicate(op, ref, c.values[l]), known(func(cell int) bool { return c.prefix(cell, l) == want })}
	case n == 8 && c.floats:
		if rng.IntN(2) == 0 {
			return condition{ice.UnaryPredicate(ice.OpIsNan, ref), known(func(cell int) bool { return cell == nan })}
		}
		return condition{ice.UnaryPredicate(ice.OpNotNan, ref), known(func(cell int) bool { return cell != nan })}
	}
	if rng.IntN(2) == 0 {
		return condition{ice.UnaryPredicate(ice.OpNotNull, ref), func(r row) ternary { return tell(r[at] != null) }}
	}
	return condition{ice.UnaryPredicate(ice.OpIsNull, ref), func(r row) ternary { return tell(r[at] == null) }}
}

func tell(is bool) ternary {
	if is {
		return isTrue
	}
	return isFalse
}

// randomRows returns n random rows; each column uses only its values first to last, so that bounds exclude some comparisons.
func randomRows(rng *rand.Rand, n int) []row {
	first, last, nulls := make([]int, len(columns)), make([]int, len(columns)), make([]int, len(columns))
	for at, c := range columns {
		first[at] = rng.IntN(len(c.values))
		last[at] = first[at] + rng.IntN(len(c.values)-first[at])
		nulls[at] = []int{0, 20, 100}[rng.IntN(3)]
	}
	rows := make([]row, n)
	for i := range rows {
		rows[i] = make(row, len(columns))
		for at, c := range columns {
			cell := first[at] + rng.IntN(last[at]-first[at]+1)
			if c.floats && rng.IntN(6) == 0 {
				cell = nan
			}
			if rng.IntN(100) < nulls[at] {
				cell = null
			}
			rows[i][at] = cell
		}
	}
	return rows
}

// bind binds a filter to the schema of columns.
func bind(t *testing.T, filter ice.BooleanExpression) ice.BooleanExpression {
	t.Helper()
	bound, err := Bind(schema(), filter)
	if err != nil {
		t.Fatalf("%s: %v", filter, err)
	}
	return bound
}

// TestApply checks that of random rows those are kept for which a random filter is true in SQL's three-valued logic.
func TestApply(t *testing.T) {
	rng := newRand(t)
	for round := range 60 {
		conditions, rows := 20, randomRows(rng, 1+rng.IntN(40))
		if round == 0 {
			conditions, rows = 100, randomRows(rng, 2*blockRows+rng.IntN(100))
		}
		arrays := arraysOf(t, rng, rows)
		for range conditions {
			c := randomCondition(rng, 3)
			mask := NewMask(len(rows))
			if err := apply(mask, bind(t, c.filter), paths(), arrays); err != nil {
				t.Fatalf("%s: %v", c.filter, err)
			}
			kept := 0
			for i, r := range rows {
				want := c.says(r) == isTrue
				if mask.Has(i) != want {
					t.Fatalf("row %v stays: %t, want %t; the filter is %s", r, mask.Has(i), want, c.filter)
				}
				if want {
					kept++
				}
			}
			if mask.Kept() != kept {
				t.Fatalf("%d rows stay, want %d", mask.Kept(), kept)
			}
		}
	}
}

// TestApplyKeepsWhatWasDropped checks that rows that the mask had dropped already stay dropped, and that a nil filter drops none.
func TestApplyKeepsWhatWasDropped(t *testing.T) {
	arrays := arraysOf(t, newRand(t), []row{make(row, len(columns)), make(row, len(columns)), make(row, len(columns))})
	mask := NewMask(3)
	mask.CopyFrom([]byte{0b10110}, 1) // its rows 1 to 3: true, true, false
	if err := apply(mask, nil, paths(), arrays); err != nil {
		t.Fatal(err)
	}
	if err := apply(mask, bind(t, ice.UnaryPredicate(ice.OpNotNull, ice.Reference("i"))), paths(), arrays); err != nil {
		t.Fatal(err)
	}
	if !mask.Has(0) || !mask.Has(1) || mask.Has(2) || mask.Kept() != 2 {
		t.Errorf("rows stay: %t %t %t, want the first two", mask.Has(0), mask.Has(1), mask.Has(2))
	}
}

// TestApplyErrors checks that a predicate that can't be evaluated is an error that names the column.
func TestApplyErrors(t *testing.T) {
	arrays := arraysOf(t, newRand(t), []row{make(row, len(columns))})
	one := ice.LiteralPredicate(ice.OpEQ, ice.Reference("i"), ice.NewLiteral(int32(1)))
	for name, c := range map[string]struct {
		filter  ice.BooleanExpression
		columns []arrow.Array
		paths   map[int]Path
		want    string
	}{
		"not read":          {bind(t, one), arrays, nil, `filter: column "i" was not read`},
		"not bound":         {one, arrays, paths(), "filter: predicate Equal(term=Reference(name='i'), literal=1) is not bound"},
		"of another type":   {bind(t, one), arrays, map[int]Path{columnAt("i") + 1: {Column: columnAt("s")}}, "literal of another kind than the column"},
		"no comparable one": {bind(t, one), arrays, map[int]Path{columnAt("i") + 1: {Column: structAt}}, "cannot be compared"},
	} {
		t.Run(name, func(t *testing.T) {
			mask := NewMask(1)
			if err := apply(mask, c.filter, c.paths, c.columns); err == nil || !contains(err, c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// boundsOf computes the bounds of columns, as a writer records them.
func boundsOf(rows []row) func(ice.NestedField) Bounds {
	return func(f ice.NestedField) Bounds {
		c := columns[f.ID-1]
		b, low, high := Bounds{Counted: true, Values: int64(len(rows))}, len(c.values), -1
		for _, r := range rows {
			switch cell := r[f.ID-1]; cell {
			case null:
				b.Nulls++
			case nan: // no bound
			default:
				low, high = min(low, cell), max(high, cell)
			}
		}
		if b.Known = high >= 0; b.Known {
			b.Min, b.Max = c.value(low), c.value(high)
		}
		return b
	}
}

// TestMightMatch checks that rows are never excluded by their columns' bounds if one of them matches, whatever is known of the
// bounds.
func TestMightMatch(t *testing.T) {
	rng := newRand(t)
	ruledOut := 0
	for range 2000 {
		rows := randomRows(rng, 1+rng.IntN(10))
		bounds := boundsOf(rows)
		c := randomCondition(rng, 3)
		passes := slices.ContainsFunc(rows, func(r row) bool { return c.says(r) == isTrue })
		filter := bind(t, c.filter)
		if filter == nil {
			continue // every row matches
		}
		might := MightMatch(filter, bounds)
		if passes && !might {
			t.Fatalf("%s is ruled out for rows %v, of which one passes", c.filter, rows)
		}
		if !might {
			ruledOut++
		}
		if !MightMatch(filter, func(ice.NestedField) Bounds { return Bounds{} }) && filter != (ice.AlwaysFalse{}) {
			t.Fatalf("%s is ruled out where nothing is known", c.filter)
		}
	}
	if ruledOut < 100 {
		t.Errorf("%d of 2000 filters are ruled out, want hundreds", ruledOut)
	}
}

// TestMightMatchExactly checks that for a column with a single value the bounds decide a comparison with it exactly.
func TestMightMatchExactly(t *testing.T) {
	for at, c := range columns {
		for cell := range c.values {
			rows := []row{make(row, len(columns))}
			rows[0][at] = cell
			for literal := range c.values {
				for _, o := range operations {
					if o.op == ice.OpNEQ {
						continue // bounds may be truncated, so they don't decide prefixes
					}
					filter := ice.LiteralPredicate(o.op, ice.Reference(c.name), c.values[literal])
					if got := MightMatch(bind(t, filter), boundsOf(rows)); got != o.is(cell, literal) {
						t.Errorf("%s might match where all are %s: %t", filter, c.values[cell], got)
					}
				}
				if c.prefix == nil {
					continue
				}
				filter := ice.LiteralPredicate(ice.OpStartsWith, ice.Reference(c.name), c.values[literal])
				if got := MightMatch(bind(t, filter), boundsOf(rows)); got != c.prefix(cell, literal) {
					t.Errorf("%s might match where all are %s: %t", filter, c.values[cell], got)
				}
			}
			rows[0][at] = null
			for _, op := range []ice.Operation{ice.OpIsNull, ice.OpNotNull} {
				filter := bind(t, ice.UnaryPredicate(op, ice.Reference(c.name)))
				if got := MightMatch(filter, boundsOf(rows)); got != (op == ice.OpIsNull) {
					t.Errorf("%s might match where all are null: %t", fmt.Sprint(filter), got)
				}
			}
		}
	}
}

// TestSingle checks that the only value of a column decides every condition on it.
func TestSingle(t *testing.T) {
	check := func(filter ice.BooleanExpression, v Value, want bool) {
		t.Helper()
		if got := MightMatch(bind(t, filter), func(ice.NestedField) Bounds { return Single(v) }); got != want {
			t.Errorf("%s might match where the only value is %+v: %t", filter, v, got)
		}
	}
	for _, c := range columns {
		name := ice.Reference(c.name)
		for cell := range c.values {
			for literal := range c.values {
				for _, o := range operations {
					check(ice.LiteralPredicate(o.op, name, c.values[literal]), c.value(cell), o.is(cell, literal))
				}
				if c.prefix != nil {
					check(ice.LiteralPredicate(ice.OpStartsWith, name, c.values[literal]), c.value(cell), c.prefix(cell, literal))
				}
			}
			all := slices.Clone(c.values)
			check(ice.SetPredicate(ice.OpNotIn, name, all), c.value(cell), false)
			if c.floats {
				check(ice.UnaryPredicate(ice.OpIsNan, name), c.value(cell), false)
				check(ice.UnaryPredicate(ice.OpIsNan, name), FloatValue(math.NaN()), true)
			}
		}
	}
}
