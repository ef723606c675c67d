// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pqfiles_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/test/bench/internal/pqfiles"
)

func TestLoadKeepsFileOrder(t *testing.T) {
	paths := []string{writeInts(t, "b", 0, 7), writeInts(t, "a", 7, 10), writeInts(t, "c", 10, 30)}
	batches, err := pqfiles.Load(t.Context(), paths, pqfiles.Options{BatchRows: 4, Threads: 3})
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	for _, b := range batches {
		if b.NumRows() > 4 {
			t.Errorf("a batch has %d rows, want at most 4", b.NumRows())
		}
		got = append(got, b.Column(0).(*array.Int64).Int64Values()...)
		b.Release()
	}
	want := make([]int64, 30)
	for i := range want {
		want[i] = int64(i)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
}

func TestLoadRefuses(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.parquet")
	if err := os.WriteFile(broken, []byte("PAR1 not a Parquet file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, paths := range map[string][]string{
		"no files":     nil,
		"missing file": {writeInts(t, "whole", 0, 3), filepath.Join(t.TempDir(), "missing.parquet")},
		"broken file":  {broken},
		"no rows":      {writeInts(t, "empty", 0, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := pqfiles.Load(t.Context(), paths, pqfiles.Options{}); err == nil {
				t.Error("no error")
			}
		})
	}
}

func TestShareCoversAll(t *testing.T) {
	for total := 1; total <= 9; total++ {
		next := 0
		for i := range total {
			lo, hi := pqfiles.Share(i, total, 5)
			if lo != next {
				t.Errorf("share %d of %d starts at %d, want %d", i, total, lo, next)
			}
			next = hi
		}
		if next != 5 {
			t.Errorf("%d shares end at %d, want 5", total, next)
		}
	}
}

func writeInts(t *testing.T, name string, lo, hi int64) string {
	t.Helper()
	builder := array.NewInt64Builder(memory.DefaultAllocator)
	defer builder.Release()
	for v := lo; v < hi; v++ {
		builder.Append(v)
	}
	column := builder.NewArray()
	defer column.Release()
	schema := arrow.NewSchema([]arrow.Field{{Name: "v", Type: arrow.PrimitiveTypes.Int64}}, nil)
	batch := array.NewRecordBatch(schema, []arrow.Array{column}, hi-lo)
	defer batch.Release()
	path := filepath.Join(t.TempDir(), fmt.Sprintf("%s.parquet", name))
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	writer, err := pqarrow.NewFileWriter(schema, out, nil, pqarrow.DefaultWriterProps())
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Write(batch); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}
