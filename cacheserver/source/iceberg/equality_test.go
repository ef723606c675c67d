// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/kubeflow/datacache/cacheserver/column"
)

// TestKeysTellRowsApart checks that different rows of two columns have different keys.
func TestKeysTellRowsApart(t *testing.T) {
	for name, tt := range map[string]struct {
		t      arrow.DataType
		values []string
	}{
		"boolean": {arrow.FixedWidthTypes.Boolean, []string{"null", "true", "false"}},
		"string":  {arrow.BinaryTypes.String, []string{"null", `""`, `"a"`, `"ab"`, `"b"`, `"\u0000"`, `"\u0001"`}},
		"int":     {arrow.PrimitiveTypes.Int32, []string{"null", "0", "1", "-1", "256"}},
		"decimal": {&arrow.Decimal128Type{Precision: 38, Scale: 2}, []string{"null", `"0.00"`, `"1.00"`, `"-1.00"`, `"184467440737095516.16"`}},
	} {
		t.Run(name, func(t *testing.T) {
			var rows []string
			for _, a := range tt.values {
				for _, b := range tt.values {
					rows = append(rows, fmt.Sprintf(`{"a":%s,"b":%s}`, a, b))
				}
			}
			schema := arrow.NewSchema([]arrow.Field{{Name: "a", Type: tt.t, Nullable: true}, {Name: "b", Type: tt.t, Nullable: true}}, nil)
			rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema, strings.NewReader("["+strings.Join(rows, ",")+"]"))
			if err != nil {
				t.Fatal(err)
			}
			defer rec.Release()
			e, err := newEncoder([]column.Path{{Column: 0}, {Column: 1}}, rec.Columns())
			if err != nil {
				t.Fatal(err)
			}
			seen := map[string]int{}
			for i := range rows {
				if j, ok := seen[string(e.key(i))]; ok {
					t.Errorf("%s and %s have one key", rows[i], rows[j])
				}
				seen[string(e.key(i))] = i
			}
		})
	}
}

func TestEveryNaNIsOneKey(t *testing.T) {
	if floatBits(math.NaN()) != floatBits(math.Float64frombits(0x7ff8000000000123)) {
		t.Error("two NaNs have other bits")
	}
}
