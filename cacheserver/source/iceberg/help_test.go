// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"context"
	"iter"
	"os"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source"
)

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func writeFile(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	writeFile(t, to, readFile(t, from))
}

func newStore() *objstore.Store { return objstore.New(objstore.Config{}) }

func sorted(rows []string) []string {
	slices.Sort(rows)
	return rows
}

// keptOf decodes a split to batches of the rows that are kept.
func keptOf(ctx context.Context, f source.Fetched) iter.Seq2[arrow.RecordBatch, error] {
	return func(yield func(arrow.RecordBatch, error) bool) {
		for b, err := range f.Batches(ctx, nil) {
			if err != nil {
				yield(nil, err)
				return
			}
			rec, err := keptRows(ctx, b)
			if !yield(rec, err) {
				return
			}
		}
	}
}

// keptRows returns the rows of a batch that are kept, and releases the batch.
func keptRows(ctx context.Context, b source.Batch) (arrow.RecordBatch, error) {
	if b.Keep == nil {
		return b.RecordBatch, nil
	}
	defer b.Release()
	keep := array.NewBoolean(int(b.NumRows()), memory.NewBufferBytes(b.Keep), nil, 0)
	defer keep.Release()
	return compute.FilterRecordBatch(ctx, b.RecordBatch, keep, compute.DefaultFilterOptions())
}
