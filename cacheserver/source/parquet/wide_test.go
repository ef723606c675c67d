// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet_test

import (
	"fmt"
	"math"
	"syscall"
	"testing"

	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/source/parquet"
)

// TestWideSchemasCostNoMoreByColumn compares the CPU time for projecting files with few and many columns: eight times as many columns must
// not cost much more than eight times as much. Work for each pair of columns would cost 64 times as much.
func TestWideSchemasCostNoMoreByColumn(t *testing.T) {
	cost := func(n int) (least int64) {
		wide := make([]ice.NestedField, n)
		for i := range wide {
			wide[i] = ice.NestedField{ID: i + 1, Name: fmt.Sprintf("column %d", i), Type: ice.PrimitiveTypes.Int64}
		}
		data := write(t, arrowSchema(t, wide), []string{"{}"})
		table, f := served(t, wide...), open(t, data)
		least = math.MaxInt64
		for range 3 {
			begin := cpu(t)
			footer, err := parquet.ReadNames(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			footer = footer.Named(parquet.NamesOf(table))
			p, err := parquet.NewProjection(footer, table, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, field := range table {
				if !footer.Has(field.ID) {
					t.Fatalf("no column %q", field.Name)
				}
			}
			if r, err := parquet.NewRowReader(t.Context(), p, f, footer.Whole(0), 1, nil); err == nil {
				r.Close()
			}
			least = min(least, cpu(t)-begin)
		}
		return least
	}
	few, many := cost(2000), cost(16000)
	t.Logf("%d ns for 2,000 columns, %d for 16,000", few, many)
	if many > 24*few {
		t.Errorf("16,000 columns cost %d times as much as 2,000, want about 8 times", many/few)
	}
}

// cpu is the CPU time of this process in nanoseconds.
func cpu(t *testing.T) int64 {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}
