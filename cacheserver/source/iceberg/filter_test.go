// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// numbers holds the values of a row besides its id; nil is null.
type numbers struct {
	f *float32
	d *float64
	n *int32
}

// edges are float values that comparisons often get wrong. -0 equals 0.
var edges = []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, math.Copysign(0, -1), 1e-45, 0.1, 16777217, -2.5, 3.4028235e38, 5}

// TestFiltersOfRandomTables compares filters with a model that knows nothing of files: statistics in manifests or footers, with or
// without NaN counts, must never exclude a row that matches the filter.
func TestFiltersOfRandomTables(t *testing.T) {
	r := seedtest.New(t)
	for range 6 {
		metadata, rows := randomNumbers(t, r)
		for range 25 {
			text, keep := randomFilter(r, 2)
			var want []string
			for id, row := range rows {
				if keep(row) == yes {
					want = append(want, fmt.Sprintf(`{"id":%d}`, id))
				}
			}
			t.Run(text, func(t *testing.T) {
				check(t, openTable(t, metadata, Selection{Filter: text, Columns: []string{"id"}}), sorted(want))
			})
		}
	}
}

// randomNumbers makes a table of several files; columns are promoted to wider types in between.
func randomNumbers(t *testing.T, r *rand.Rand) (metadata string, rows []numbers) {
	t.Helper()
	schema := ice.NewSchema(0,
		ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64},
		ice.NestedField{ID: 2, Name: "f", Type: ice.PrimitiveTypes.Float32},
		ice.NestedField{ID: 3, Name: "d", Type: ice.PrimitiveTypes.Float64},
		ice.NestedField{ID: 4, Name: "n", Type: ice.PrimitiveTypes.Int32},
	)
	made := icetest.Local(t).Create("t", 2, schema, icetest.RowGroup(1+r.IntN(8)))
	now := made.Iceberg()
	for range 2 + r.IntN(3) {
		if r.IntN(3) == 0 {
			now = widen(t, now)
		}
		part := make([]numbers, 1+r.IntN(12))
		common := r.IntN(3) == 0 // one value in the whole file: only NaN, or only null
		for i := range part {
			if part[i] = randomRow(r); common {
				part[i] = part[0]
			}
		}
		now = appendNumbers(t, now, part, len(rows))
		rows = append(rows, part...)
	}
	if r.IntN(2) == 0 {
		now = widen(t, now)
	}
	return now.MetadataLocation(), rows
}

func randomRow(r *rand.Rand) (row numbers) {
	if r.IntN(5) > 0 {
		row.f = new(float32(edges[r.IntN(len(edges))]))
	}
	if r.IntN(5) > 0 {
		row.d = new(edges[r.IntN(len(edges))])
	}
	if r.IntN(5) > 0 {
		row.n = new(int32(r.IntN(9) - 4))
	}
	return row
}

// widen promotes f to double and n to long.
func widen(t *testing.T, tbl *table.Table) *table.Table {
	t.Helper()
	tx := tbl.NewTransaction()
	u := tx.UpdateSchema(true, true)
	u.UpdateColumn([]string{"f"}, table.ColumnUpdate{FieldType: ice.Optional[ice.Type]{Val: ice.PrimitiveTypes.Float64, Valid: true}})
	u.UpdateColumn([]string{"n"}, table.ColumnUpdate{FieldType: ice.Optional[ice.Type]{Val: ice.PrimitiveTypes.Int64, Valid: true}})
	if err := u.Commit(); err != nil {
		t.Fatal(err)
	}
	after, err := tx.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return after
}

func appendNumbers(t *testing.T, tbl *table.Table, rows []numbers, first int) *table.Table {
	t.Helper()
	schema, err := table.SchemaToArrowSchema(tbl.Schema(), nil, true, false)
	if err != nil {
		t.Fatal(err)
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for i, row := range rows {
		b.Field(0).(*array.Int64Builder).Append(int64(first + i))
		appendCell(b.Field(1), row.f)
		appendCell(b.Field(2), row.d)
		appendCell(b.Field(3), row.n)
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	reader, err := array.NewRecordReader(schema, []arrow.RecordBatch{rec})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Release()
	after, err := tbl.Append(t.Context(), reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	return after
}

func appendCell[T float32 | float64 | int32](to array.Builder, v *T) {
	switch to := to.(type) {
	case *array.Float32Builder:
		if v != nil {
			to.Append(float32(*v))
			return
		}
	case *array.Float64Builder:
		if v != nil {
			to.Append(float64(*v))
			return
		}
	case *array.Int32Builder:
		if v != nil {
			to.Append(int32(*v))
			return
		}
	case *array.Int64Builder:
		if v != nil {
			to.Append(int64(*v))
			return
		}
	}
	to.AppendNull()
}

// randomFilter returns a clause and a function that evaluates it for a row.
func randomFilter(r *rand.Rand, depth int) (string, func(numbers) logic) {
	if depth == 0 || r.IntN(3) == 0 {
		return randomComparison(r)
	}
	left, isLeft := randomFilter(r, depth-1)
	if r.IntN(4) == 0 {
		return "NOT (" + left + ")", func(n numbers) logic { return negated(isLeft(n)) }
	}
	right, isRight := randomFilter(r, depth-1)
	if r.IntN(2) == 0 {
		return "(" + left + " AND " + right + ")", func(n numbers) logic {
			return negated(either(negated(isLeft(n)), negated(isRight(n))))
		}
	}
	return "(" + left + " OR " + right + ")", func(n numbers) logic { return either(isLeft(n), isRight(n)) }
}

// logic is a truth value of SQL.
type logic uint8

const (
	no logic = iota
	yes
	unknown
)

func negated(v logic) logic { return [...]logic{no: yes, yes: no, unknown: unknown}[v] }

func either(a, b logic) logic {
	switch {
	case a == yes || b == yes:
		return yes
	case a == unknown || b == unknown:
		return unknown
	}
	return no
}

var operators = map[string]func(a, b float64) bool{
	"=": func(a, b float64) bool { return a == b }, "<>": func(a, b float64) bool { return a != b },
	"<": func(a, b float64) bool { return a < b }, "<=": func(a, b float64) bool { return a <= b },
	">": func(a, b float64) bool { return a > b }, ">=": func(a, b float64) bool { return a >= b },
}

var operatorNames = []string{"=", "<>", "<", "<=", ">", ">="}

func randomComparison(r *rand.Rand) (string, func(numbers) logic) {
	column := []string{"d", "n"}[r.IntN(2)] // the meaning of a literal for f depends on whether f was promoted: see test_spark.py
	get := func(row numbers) (float64, bool) {
		if column == "d" && row.d != nil {
			return *row.d, true
		}
		if column == "n" && row.n != nil {
			return float64(*row.n), true
		}
		return 0, false
	}
	if r.IntN(4) == 0 {
		column = "f"
		get = func(row numbers) (float64, bool) {
			if row.f == nil {
				return 0, false
			}
			return float64(*row.f), true
		}
	}
	switch kind := r.IntN(8); {
	case kind == 0:
		return column + " IS NULL", func(row numbers) logic {
			_, ok := get(row)
			return truthOf(!ok)
		}
	case kind == 1 && column != "n":
		return column + " IS NAN", func(row numbers) logic {
			v, ok := get(row)
			return truthOf(ok && math.IsNaN(v))
		}
	case kind == 2:
		a, b := randomLiteral(r, column), randomLiteral(r, column)
		return fmt.Sprintf("%s IN (%s, %s)", column, spelled(a), spelled(b)), comparison(get, func(v float64) bool { return v == a || v == b })
	}
	name, literal := operatorNames[r.IntN(len(operatorNames))], randomLiteral(r, column)
	return fmt.Sprintf("%s %s %s", column, name, spelled(literal)), comparison(get, func(v float64) bool { return operators[name](v, literal) })
}

func comparison(get func(numbers) (float64, bool), is func(float64) bool) func(numbers) logic {
	return func(row numbers) logic {
		v, ok := get(row)
		if !ok {
			return unknown
		}
		return truthOf(is(v))
	}
}

func truthOf(b bool) logic {
	if b {
		return yes
	}
	return no
}

// randomLiteral returns a number that columns of all widths represent exactly; for column n it is an integer.
func randomLiteral(r *rand.Rand, column string) float64 {
	if column == "n" {
		return float64(r.IntN(11) - 5)
	}
	if column == "d" && r.IntN(3) == 0 {
		return []float64{0.1, 1e-45, 16777217}[r.IntN(3)]
	}
	return []float64{0, -2.5, 5, 16777216, float64(float32(0.1)), math.SmallestNonzeroFloat32}[r.IntN(6)]
}

func spelled(v float64) string { return strings.ToLower(strconv.FormatFloat(v, 'g', -1, 64)) }
