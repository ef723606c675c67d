// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// ternary is a truth value of SQL.
type ternary uint8

const (
	isFalse ternary = iota
	isTrue
	isUnknown
)

// apply clears in m the rows for which a filter is not true.
func apply(t *testing.T, m *Mask, filter syntax.Node, columns []arrow.Array) error {
	t.Helper()
	f := compile(t, filter)
	return f.Evaluator(paths(f)).Apply(m, columns)
}

// condition is a filter and a function that computes its value for a row independently.
type condition struct {
	filter syntax.Node
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
		return condition{not(a.filter), func(r row) ternary {
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

// joined returns a OR b if either is set, otherwise a AND b.
func joined(a, b condition, either bool) condition {
	// SQL's truth tables of AND and OR, in the order false, true, unknown for both sides.
	join, table := and(a.filter, b.filter), [3][3]ternary{{isFalse, isFalse, isFalse}, {isFalse, isTrue, isUnknown}, {isFalse, isUnknown, isUnknown}}
	if either {
		join, table = or(a.filter, b.filter), [3][3]ternary{{isFalse, isTrue, isUnknown}, {isTrue, isTrue, isTrue}, {isUnknown, isTrue, isUnknown}}
	}
	return condition{join, func(r row) ternary { return table[a.says(r)][b.says(r)] }}
}

// operations compare a cell with a literal; both are given by their index among the column's ascending values.
var operations = []struct {
	op syntax.Operator
	is func(cell, literal int) bool
}{
	{syntax.Equal, func(c, l int) bool { return c == l }},
	{syntax.NotEqual, func(c, l int) bool { return c != l }}, // true for NaN too
	{syntax.Less, func(c, l int) bool { return c != nan && c < l }},
	{syntax.LessEqual, func(c, l int) bool { return c != nan && c <= l }},
	{syntax.Greater, func(c, l int) bool { return c != nan && c > l }},
	{syntax.GreaterEqual, func(c, l int) bool { return c != nan && c >= l }},
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
	switch n := rng.IntN(10); {
	case n < 5:
		o, l := operations[rng.IntN(len(operations))], literal()
		return condition{is(c.name, o.op, c.values[l]), known(func(cell int) bool { return o.is(cell, l) })}
	case n < 8:
		set := []int{literal(), literal(), literal()}
		return condition{is(c.name, syntax.In, c.values[set[0]], c.values[set[1]], c.values[set[2]]), known(func(cell int) bool { return slices.Contains(set, cell) })}
	case n == 8 && c.floats:
		return condition{is(c.name, syntax.IsNaN), func(r row) ternary { return tell(r[at] == nan) }}
	}
	return condition{is(c.name, syntax.IsNull), func(r row) ternary { return tell(r[at] == null) }}
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

// TestApply checks that of random rows those are kept for which a random filter is true in SQL's three-valued logic.
func TestApply(t *testing.T) {
	rng := seedtest.New(t)
	for round := range 60 {
		conditions, rows := 20, randomRows(rng, 1+rng.IntN(40))
		if round == 0 {
			conditions, rows = 100, randomRows(rng, 2*blockRows+rng.IntN(100))
		}
		arrays := arraysOf(t, rng, rows)
		for range conditions {
			c := randomCondition(rng, 3)
			mask := NewMask(len(rows))
			if err := apply(t, mask, c.filter, arrays); err != nil {
				t.Fatalf("%v: %v", c.filter, err)
			}
			kept := 0
			for i, r := range rows {
				want := c.says(r) == isTrue
				if mask.Has(i) != want {
					t.Fatalf("row %v stays: %t, want %t; the filter is %v", r, mask.Has(i), want, c.filter)
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
	arrays := arraysOf(t, seedtest.New(t), []row{make(row, len(columns)), make(row, len(columns)), make(row, len(columns))})
	mask := NewMask(3)
	mask.CopyFrom([]byte{0b10110}, 1) // its rows 1 to 3: true, true, false
	if err := apply(t, mask, syntax.Const{Value: true}, arrays); err != nil {
		t.Fatal(err)
	}
	if err := apply(t, mask, not(is("i", syntax.IsNull)), arrays); err != nil {
		t.Fatal(err)
	}
	if !mask.Has(0) || !mask.Has(1) || mask.Has(2) || mask.Kept() != 2 {
		t.Errorf("rows stay: %t %t %t, want the first two", mask.Has(0), mask.Has(1), mask.Has(2))
	}
}

// TestApplyErrors checks that a test that can't be evaluated is an error that names the column.
func TestApplyErrors(t *testing.T) {
	arrays := arraysOf(t, seedtest.New(t), []row{make(row, len(columns))})
	f := compile(t, is("i", syntax.Equal, column.IntValue(1)))
	for at, want := range map[int]string{columnAt("s"): "literal of another kind than the column", structAt: "cannot be compared"} {
		err := f.Evaluator([]column.Path{{Column: at}}).Apply(NewMask(1), arrays)
		if err == nil || !contains(err, want) || !contains(err, `column "i"`) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := Compile(syntax.Test{}); err == nil || !contains(err, "is not bound to columns") {
		t.Errorf("a test that is not bound: %v", err)
	}
}

// boundsOf computes the bounds of columns, as a writer records them.
func boundsOf(rows []row) func(column.Field) Bounds {
	return func(f column.Field) Bounds {
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
			b.Min, b.Max = c.values[low], c.values[high]
		}
		return b
	}
}

// TestMightMatch checks that rows are never excluded by their columns' bounds if one of them matches, whatever is known of the
// bounds.
func TestMightMatch(t *testing.T) {
	rng := seedtest.New(t)
	ruledOut := 0
	for range 2000 {
		rows := randomRows(rng, 1+rng.IntN(10))
		bounds := boundsOf(rows)
		c := randomCondition(rng, 3)
		passes := slices.ContainsFunc(rows, func(r row) bool { return c.says(r) == isTrue })
		filter := compile(t, c.filter)
		might := filter.MightMatch(bounds)
		if passes && !might {
			t.Fatalf("%v is ruled out for rows %v, of which one passes", c.filter, rows)
		}
		if !might {
			ruledOut++
		}
		if !filter.MightMatch(func(column.Field) Bounds { return Bounds{} }) && filter.Terms() > 0 {
			t.Fatalf("%v is ruled out where nothing is known", c.filter)
		}
	}
	if ruledOut < 100 {
		t.Errorf("%d of 2000 filters are ruled out, want hundreds", ruledOut)
	}
}

// TestAlwaysMatches checks that no filter is said to be true for all rows that is not, and that a single value without nulls decides it.
func TestAlwaysMatches(t *testing.T) {
	rng := seedtest.New(t)
	proven := 0
	for range 5000 {
		rows := randomRows(rng, 1+rng.IntN(3))
		c := randomCondition(rng, 2)
		filter, all := compile(t, c.filter), !slices.ContainsFunc(rows, func(r row) bool { return c.says(r) != isTrue })
		if filter.AlwaysMatches(boundsOf(rows)) {
			if proven++; !all {
				t.Fatalf("%v is said to be true for all rows of %v", c.filter, rows)
			}
		}
		if filter.AlwaysMatches(func(column.Field) Bounds { return Bounds{} }) && filter.Terms() > 0 {
			t.Fatalf("%v is said to be true for all rows where nothing is known", c.filter)
		}
	}
	if proven < 200 {
		t.Errorf("%d of 5000 filters are proven, want hundreds", proven)
	}
	for _, c := range columns {
		for cell := range c.values {
			for literal := range c.values {
				for _, o := range operations {
					filter := is(c.name, o.op, c.values[literal])
					if got := compile(t, filter).AlwaysMatches(func(column.Field) Bounds { return Single(c.values[cell]) }); got != o.is(cell, literal) {
						t.Errorf("%v is true where all are %s: %t", filter, c.values[cell], got)
					}
				}
			}
		}
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
					if o.op == syntax.NotEqual {
						continue // bounds may be truncated, so they don't decide prefixes
					}
					filter := is(c.name, o.op, c.values[literal])
					if got := compile(t, filter).MightMatch(boundsOf(rows)); got != o.is(cell, literal) {
						t.Errorf("%v might match where all are %s: %t", filter, c.values[cell], got)
					}
				}
			}
			rows[0][at] = null
			for negated, filter := range map[bool]syntax.Node{false: is(c.name, syntax.IsNull), true: not(is(c.name, syntax.IsNull))} {
				if got := compile(t, filter).MightMatch(boundsOf(rows)); got == negated {
					t.Errorf("%v might match where all are null: %t", filter, got)
				}
			}
		}
	}
}

// TestSingle checks that the only value of a column decides every condition on it.
func TestSingle(t *testing.T) {
	check := func(filter syntax.Node, v column.Value, want bool) {
		t.Helper()
		if got := compile(t, filter).MightMatch(func(column.Field) Bounds { return Single(v) }); got != want {
			t.Errorf("%v might match where the only value is %+v: %t", filter, v, got)
		}
	}
	for _, c := range columns {
		for cell := range c.values {
			for literal := range c.values {
				for _, o := range operations {
					check(is(c.name, o.op, c.values[literal]), c.values[cell], o.is(cell, literal))
				}
			}
			check(not(is(c.name, syntax.In, c.values...)), c.values[cell], false)
			if c.floats {
				check(is(c.name, syntax.IsNaN), c.values[cell], false)
				check(is(c.name, syntax.IsNaN), column.FloatValue(math.NaN()), true)
			}
		}
	}
}
