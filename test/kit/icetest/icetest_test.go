// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package icetest

import (
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/test/kit/s3test"
)

// TestTables has iceberg-go read what it wrote: it must find the expected rows.
func TestTables(t *testing.T) {
	warehouses := map[string]*Warehouse{"local": Local(t), "s3": OnS3(t, s3test.Start(t), "lake")}
	tables := map[string]func(w *Warehouse) *Table{
		"plain":       func(w *Warehouse) *Table { return w.Plain("plain", 1, 2, 50, 20) },
		"no snapshot": func(w *Warehouse) *Table { return w.NoSnapshot("fresh") },
		"empty":       func(w *Warehouse) *Table { return w.Empty("empty") },
		"primitives":  func(w *Warehouse) *Table { return w.Primitives("primitives", 2) },
		"nested":      func(w *Warehouse) *Table { return w.Nested("nested", 2) },
		"partitions":  func(w *Warehouse) *Table { return w.ByCategory("partitions", 2) },
		"positions":   func(w *Warehouse) *Table { return w.Deleted("positions", 2) },
		"vectors":     func(w *Warehouse) *Table { return w.Deleted("vectors", 3) },
		"equal":       func(w *Warehouse) *Table { return w.EqualDeleted("equal", 2) },
		"evolved":     func(w *Warehouse) *Table { return w.Evolved("evolved", 2) },
		"history":     func(w *Warehouse) *Table { made, _ := w.History("history", 2); return made },
	}
	for where, w := range warehouses {
		for name, create := range tables {
			t.Run(where+" "+name, func(t *testing.T) {
				made := create(w)
				_, records, err := made.Iceberg().Scan().ToArrowRecords(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				var batches []arrow.RecordBatch
				for rec, err := range records {
					if err != nil {
						t.Fatal(err)
					}
					defer rec.Release()
					batches = append(batches, rec)
				}
				if diff := cmp.Diff(made.Rows(), JSON(t, batches...)); diff != "" {
					t.Errorf("rows (-want +got):\n%.1000s", diff)
				}
				if made.Len() != len(made.Rows()) {
					t.Errorf("Len() = %d, Rows() has %d", made.Len(), len(made.Rows()))
				}
			})
		}
	}
}
