// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/predicate"
)

// TestObserved adds each array in two slices, and its first two rows once more as another part.
func TestObserved(t *testing.T) {
	for name, tt := range map[string]struct {
		typ  arrow.DataType
		json string // four rows
		want string // nulls, NaNs, minimum, maximum
	}{
		"int32":     {arrow.PrimitiveTypes.Int32, `[3, null, -7, 5]`, "2 0 -7 5"},
		"int64":     {arrow.PrimitiveTypes.Int64, `[3, 2, 9, 5]`, "0 0 2 9"},
		"date":      {arrow.FixedWidthTypes.Date32, `["1970-01-02", "1969-12-31", "1970-01-11", null]`, "1 0 -1 10"},
		"boolean":   {arrow.FixedWidthTypes.Boolean, `[true, true, null, true]`, "1 0 1 1"},
		"double":    {arrow.PrimitiveTypes.Float64, `[0.5, "NaN", -2, null]`, "1 2 -2 0.5"},
		"only NaN":  {arrow.PrimitiveTypes.Float32, `["NaN", "NaN", null, "NaN"]`, "1 5 - -"},
		"string":    {arrow.BinaryTypes.String, `["b", "", null, "ab"]`, `1 0 "" "b"`},
		"decimal":   {&arrow.Decimal128Type{Precision: 9, Scale: 2}, `["1.50", "-2.25", null, "0"]`, "1 0 -225 150"},
		"all null":  {arrow.BinaryTypes.String, `[null, null, null, null]`, "6 0 - -"},
		"timestamp": {&arrow.TimestampType{Unit: arrow.Microsecond}, `[null, "1970-01-01 00:00:01", "1970-01-01", null]`, "3 0 0 1000000"},
	} {
		t.Run(name, func(t *testing.T) {
			values, _, err := array.FromJSON(memory.DefaultAllocator, tt.typ, strings.NewReader(tt.json))
			if err != nil {
				t.Fatal(err)
			}
			var all, part predicate.Observed
			for _, at := range []int64{0, 2} {
				if !all.Add(array.NewSlice(values, at, at+2), nil) {
					t.Fatal("not ordered")
				}
			}
			part.Add(array.NewSlice(values, 0, 2), nil)
			all.Merge(part)
			got := []string{count(all.Nulls), count(all.NaNs), "-", "-"}
			if all.Some {
				got[2], got[3] = all.Min.String(), all.Max.String()
			}
			if text := strings.Join(got, " "); text != tt.want || all.Rows != 6 {
				t.Errorf("got %s of %d rows, want %s", text, all.Rows, tt.want)
			}
		})
	}
}

func count(n int64) string { return column.IntValue(n).String() }

// TestObservedInStructs counts a field as null where its struct is.
func TestObservedInStructs(t *testing.T) {
	typ := arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Int64, Nullable: true})
	values, _, err := array.FromJSON(memory.DefaultAllocator, typ, strings.NewReader(`[{"x": 1}, null, {"x": null}, {"x": 4}]`))
	if err != nil {
		t.Fatal(err)
	}
	var o predicate.Observed
	leaf, parents := column.Path{Kids: []int{0}}.At([]arrow.Array{values})
	o.Add(leaf, parents)
	if o.Nulls != 2 || o.Min.Int != 1 || o.Max.Int != 4 {
		t.Errorf("got %+v", o)
	}
}

func TestContradicts(t *testing.T) {
	seen := predicate.Observed{Rows: 10, Nulls: 2, Min: column.IntValue(-1), Max: column.IntValue(5), Some: true}
	bounds := func(lo, hi int64) predicate.Bounds {
		return predicate.Bounds{Min: column.IntValue(lo), Max: column.IntValue(hi), Known: true}
	}
	nulls := func(n int64) predicate.Bounds { return predicate.Bounds{Nulls: n, Counted: true, Values: 10} }
	for name, tt := range map[string]struct {
		stated      predicate.Bounds
		whole, part string // what is contradicted; upper case: it hides rows
	}{
		"nothing":       {predicate.Bounds{}, "", ""},
		"exact":         {bounds(-1, 5), "", ""},
		"wider":         {bounds(-9, 9), "", ""},
		"minimum":       {bounds(0, 5), "MINIMUM", "MINIMUM"},
		"maximum":       {bounds(-1, 4), "MAXIMUM", "MAXIMUM"},
		"both":          {bounds(1, 2), "MINIMUM MAXIMUM", "MINIMUM MAXIMUM"},
		"another type":  {predicate.Bounds{Min: column.FloatValue(0), Max: column.FloatValue(0), Known: true}, "", ""},
		"nulls":         {nulls(2), "", ""},
		"no nulls":      {nulls(0), "NULLS", "NULLS"},
		"only nulls":    {nulls(10), "NULLS", "NULLS"},
		"another count": {nulls(3), "nulls", ""},
	} {
		t.Run(name, func(t *testing.T) {
			for part, want := range map[bool]string{false: tt.whole, true: tt.part} {
				var got []string
				for _, c := range seen.Contradicts(tt.stated, part) {
					if c.Hides {
						c.What = strings.ToUpper(c.What)
					}
					got = append(got, c.What)
				}
				if !slices.Equal(got, strings.Fields(want)) {
					t.Errorf("part %v: got %q, want %q", part, got, want)
				}
			}
		})
	}
}
