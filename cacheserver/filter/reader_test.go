// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
)

// reader evaluates a bound expression for one row: 1 true, 0 false, -1 unknown. ofNull is the result of a comparison with NULL:
// unknown as in SQL, or false. With false, != NULL is true, as in Iceberg.
type reader struct {
	schema *iceberg.Schema
	row    row
	ofNull int
}

var _ iceberg.BoundBooleanExprVisitor[int] = reader{}

// read returns the ids of the rows for which the expression is true.
func read(t *testing.T, schema *iceberg.Schema, expression iceberg.BooleanExpression, rows []row, ofNull int) []int64 {
	t.Helper()
	bound, err := iceberg.BindExpr(schema, expression, true)
	if err != nil {
		t.Fatal(err)
	}
	ids := []int64{}
	for _, r := range rows {
		is, err := iceberg.VisitExpr(bound, reader{schema, r, ofNull})
		if err != nil {
			t.Fatal(err)
		}
		if is == 1 {
			ids = append(ids, r["id"].(int64))
		}
	}
	return ids
}

func (r reader) value(term iceberg.BoundTerm) any {
	name, ok := r.schema.FindColumnName(term.Ref().Field().ID)
	if !ok {
		panic(fmt.Errorf("no column for %s", term))
	}
	return r.row[name]
}

// plainValue converts a literal to the Go type that rows hold.
func plainValue(lit iceberg.Literal) any {
	switch l := lit.(type) {
	case iceberg.BoolLiteral:
		return bool(l)
	case iceberg.Int32Literal:
		return int64(l)
	case iceberg.Int64Literal:
		return int64(l)
	case iceberg.Float32Literal:
		return float64(l)
	case iceberg.Float64Literal:
		return float64(l)
	case iceberg.DecimalLiteral:
		return l.Val.BigInt().Int64()
	case iceberg.DateLiteral:
		return int64(l)
	case iceberg.TimeLiteral:
		return int64(l)
	case iceberg.TimestampLiteral:
		return int64(l)
	case iceberg.TimestampNsLiteral:
		return int64(l)
	case iceberg.StringLiteral:
		return string(l)
	case iceberg.BinaryLiteral:
		return string(l)
	case iceberg.FixedLiteral:
		return string(l)
	case iceberg.UUIDLiteral:
		return string(l[:])
	}
	panic(fmt.Errorf("no value for a %T", lit))
}

func (r reader) compare(term iceberg.BoundTerm, op string, lit iceberg.Literal) int {
	if v := r.value(term); v != nil {
		return holds(v, op, plainValue(lit))
	}
	return r.ofNull
}

func (reader) VisitTrue() int               { return 1 }
func (reader) VisitFalse() int              { return 0 }
func (reader) VisitNot(child int) int       { return not(child) }
func (reader) VisitAnd(left, right int) int { return and(left, right) }
func (reader) VisitOr(left, right int) int  { return or(left, right) }

func (reader) VisitUnbound(p iceberg.UnboundPredicate) int {
	panic(fmt.Errorf("%s is not bound", p))
}

func (r reader) VisitBound(p iceberg.BoundPredicate) int { return iceberg.VisitBoundPredicate(p, r) }

func (r reader) VisitIsNull(t iceberg.BoundTerm) int  { return tell(r.value(t) == nil) }
func (r reader) VisitNotNull(t iceberg.BoundTerm) int { return tell(r.value(t) != nil) }

// VisitIsNan reports NULL as NaN too, since a reader may look at the undefined value in a NULL's slot.
func (r reader) VisitIsNan(t iceberg.BoundTerm) int {
	v := r.value(t)
	x, ok := v.(float64)
	return tell(v == nil || ok && math.IsNaN(x))
}

func (r reader) VisitNotNan(t iceberg.BoundTerm) int { return not(r.VisitIsNan(t)) }

func (r reader) VisitEqual(t iceberg.BoundTerm, l iceberg.Literal) int {
	return r.compare(t, "=", l)
}

func (r reader) VisitNotEqual(t iceberg.BoundTerm, l iceberg.Literal) int {
	return not(r.compare(t, "=", l))
}

func (r reader) VisitLess(t iceberg.BoundTerm, l iceberg.Literal) int {
	return r.compare(t, "<", l)
}

func (r reader) VisitLessEqual(t iceberg.BoundTerm, l iceberg.Literal) int {
	return r.compare(t, "<=", l)
}

func (r reader) VisitGreater(t iceberg.BoundTerm, l iceberg.Literal) int {
	return r.compare(t, ">", l)
}

func (r reader) VisitGreaterEqual(t iceberg.BoundTerm, l iceberg.Literal) int {
	return r.compare(t, ">=", l)
}

func (r reader) VisitIn(t iceberg.BoundTerm, lits iceberg.Set[iceberg.Literal]) int {
	is := 0
	for _, l := range lits.Members() {
		is = or(is, r.compare(t, "=", l))
	}
	return is
}

func (r reader) VisitNotIn(t iceberg.BoundTerm, lits iceberg.Set[iceberg.Literal]) int {
	return not(r.VisitIn(t, lits))
}

func (r reader) VisitStartsWith(t iceberg.BoundTerm, l iceberg.Literal) int {
	v, ok := r.value(t).(string)
	if !ok {
		return r.ofNull
	}
	return tell(strings.HasPrefix(v, plainValue(l).(string)))
}

func (r reader) VisitNotStartsWith(t iceberg.BoundTerm, l iceberg.Literal) int {
	return not(r.VisitStartsWith(t, l))
}
