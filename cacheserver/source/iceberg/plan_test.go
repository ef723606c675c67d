// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

func TestPlanIsTheSameEveryTime(t *testing.T) {
	made := icetest.Local(t).ByCategory("t", 2)
	first := planOf(t, openTable(t, made.Metadata(), Selection{}))
	for range 10 {
		if diff := cmp.Diff(first, planOf(t, openTable(t, made.Metadata(), Selection{}))); diff != "" {
			t.Fatalf("plans differ:\n%s", diff)
		}
	}
	if !slices.IsSortedFunc(first, func(a, b source.Split) int {
		return slices.Compare([]string{string(rune(a.Sequence)), a.File, string(rune(a.RowGroup))}, []string{string(rune(b.Sequence)), b.File, string(rune(b.RowGroup))})
	}) {
		t.Error("splits are not by sequence, file and row group")
	}
}

func TestPlanTellsItsProgress(t *testing.T) {
	made := icetest.Local(t).Plain("t", 2, 5, 10, 100)
	var got [][2]int
	if _, err := openTable(t, made.Metadata(), Selection{}).Plan(t.Context(), func(done, total int) { got = append(got, [2]int{done, total}) }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([][2]int{{1, 5}, {2, 5}, {3, 5}, {4, 5}, {5, 5}}, got); diff != "" {
		t.Error(diff)
	}
}

func TestPlanCanBeCanceled(t *testing.T) {
	made := icetest.Local(t).Plain("t", 2, 5, 10, 100)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := openTable(t, made.Metadata(), Selection{}).Plan(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
}

func TestRecordsCanBeCanceled(t *testing.T) {
	made := icetest.Local(t).Plain("t", 2, 1, 10, 100)
	tbl := openTable(t, made.Metadata(), Selection{})
	f, err := tbl.Fetch(t.Context(), planOf(t, tbl)[0], 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for rec, err := range keptOf(ctx, f) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("batch %v, error %v, want %v", rec, err, context.Canceled)
		}
	}
}

// TestSplitsInAnyOrder reads the splits of one table with another that knows only the pin; the splits are encoded, shuffled and read
// twice each.
func TestSplitsInAnyOrder(t *testing.T) {
	w := icetest.Local(t)
	for name, made := range map[string]*icetest.Table{
		"plain": w.Plain("plain", 2, 3, 100, 16), "positions": w.Deleted("positions", 2),
		"vectors": w.Deleted("vectors", 3), "equal": w.EqualDeleted("equal", 2), "nested": w.Nested("nested", 2),
	} {
		t.Run(name, func(t *testing.T) {
			tbl := openTable(t, made.Metadata(), Selection{})
			splits := shipped(t, planOf(t, tbl))
			seedtest.New(t).Shuffle(len(splits), func(i, j int) { splits[i], splits[j] = splits[j], splits[i] })
			node, err := OpenPinned(t.Context(), objstore.New(objstore.Config{}), Location{Metadata: made.Metadata()}, tbl.Pin(), Selection{})
			if err != nil {
				t.Fatal(err)
			}
			once := readAll(t, node, splits)
			if diff := cmp.Diff(made.Rows(), icetest.JSON(t, once...)); diff != "" {
				t.Errorf("rows (-want +got):\n%.2000s", diff)
			}
			if !slices.EqualFunc(once, readAll(t, node, splits), func(a, b arrow.RecordBatch) bool { return array.RecordEqual(a, b) }) {
				t.Error("the second read gave other batches")
			}
		})
	}
}

// shipped encodes splits as JSON and decodes them.
func shipped(t *testing.T, splits []source.Split) []source.Split {
	t.Helper()
	text, err := json.Marshal(splits)
	if err != nil {
		t.Fatal(err)
	}
	var out []source.Split
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestSplitsAreWhatIcebergReads passes every split's byte range to iceberg-go: each range must be one row group, and together they
// must make up the file.
func TestSplitsAreWhatIcebergReads(t *testing.T) {
	made := icetest.Local(t).Deleted("t", 2)
	tbl := openTable(t, made.Metadata(), Selection{})
	splits := planOf(t, tbl)
	tasks, err := tbl.scan.PlanFiles(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range splits {
		i := slices.IndexFunc(tasks, func(task table.FileScanTask) bool { return task.File.FilePath() == s.File })
		task := tasks[i]
		task.Start, task.Length = s.Start, s.Length
		_, records, err := tbl.table.Scan(table.WithMaxConcurrency(1)).ReadTasks(t.Context(), []table.FileScanTask{task})
		if err != nil {
			t.Fatal(err)
		}
		var want []arrow.RecordBatch
		for rec, err := range records {
			if err != nil {
				t.Fatal(err)
			}
			defer rec.Release()
			want = append(want, rec)
		}
		got, err := readSplit(t, tbl, s)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(icetest.JSON(t, want...), icetest.JSON(t, got...)); diff != "" {
			t.Errorf("split %+v (-iceberg-go +ours):\n%.1000s", s, diff)
		}
	}
}

func TestSplitOfAnotherPlan(t *testing.T) {
	w := icetest.Local(t)
	a, b := w.Deleted("a", 2), w.Deleted("b", 2)
	split := planOf(t, openTable(t, a.Metadata(), Selection{}))[0]
	if _, err := openTable(t, b.Metadata(), Selection{}).Fetch(t.Context(), split, 0); err == nil {
		t.Error("a split of another table was fetched")
	}
	split.RowGroup = 99
	if _, err := openTable(t, a.Metadata(), Selection{}).Fetch(t.Context(), split, 0); err == nil {
		t.Error("a row group that is not there was fetched")
	}
}

func TestWeights(t *testing.T) {
	w := icetest.Local(t)
	for name, made := range map[string]*icetest.Table{"plain": w.Plain("p", 2, 1, 1000, 1000), "nested": w.Nested("n", 2), "primitives": w.Primitives("a", 2)} {
		tbl := openTable(t, made.Metadata(), Selection{})
		for _, s := range planOf(t, tbl) {
			batches, err := readSplit(t, tbl, s)
			if err != nil {
				t.Fatal(err)
			}
			var bytes int64
			for _, b := range batches {
				for _, c := range b.Columns() {
					bytes += int64(c.Data().SizeInBytes())
				}
			}
			if s.Bytes < bytes/3 || s.Bytes > bytes*3 {
				t.Errorf("%s: a split weighs %d bytes and takes %d as Arrow", name, s.Bytes, bytes)
			}
		}
	}
}

func TestBatchRows(t *testing.T) {
	for _, tt := range []struct{ weight, rows, want int64 }{
		{weight: 8 * 1e6, rows: 1e6, want: parquet.MaxBatchRows},
		{weight: 2048 * 1000, rows: 1000, want: 2048},
		{weight: 20_000 * 1000, rows: 1000, want: 128},
		{weight: 8 << 20, rows: 1, want: parquet.MinBatchRows},
		{weight: 20 << 20, rows: 1, want: 4},
		{weight: 200 << 20, rows: 1, want: 1},
		{weight: 1, rows: 0, want: parquet.MaxBatchRows},
	} {
		if got := parquet.BatchRows(tt.weight, tt.rows); got != tt.want {
			t.Errorf("batchRows(%d, %d) = %d, want %d", tt.weight, tt.rows, got, tt.want)
		}
	}
}

func TestOnlyParquet(t *testing.T) {
	made := icetest.Local(t).Plain("t", 2, 1, 10, 100)
	builder, err := ice.NewDataFileBuilder(*ice.UnpartitionedSpec, ice.EntryContentData, "/x/data.orc", ice.OrcFile, nil, nil, nil, 10, 100)
	if err != nil {
		t.Fatal(err)
	}
	tx := made.Iceberg().NewTransaction()
	if err := tx.AddDataFiles(t.Context(), []ice.DataFile{builder.Build()}, nil); err != nil {
		t.Fatal(err)
	}
	after, err := tx.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = openTable(t, after.MetadataLocation(), Selection{}).Plan(t.Context(), nil)
	wantError(t, err, "/x/data.orc", "ORC", "only Parquet")
}

// TestOneTableManyReaders reads all splits concurrently, so that footers and deletes are loaded by whichever reader comes first.
func TestOneTableManyReaders(t *testing.T) {
	w := icetest.Local(t)
	for name, made := range map[string]*icetest.Table{"positions": w.Deleted("positions", 2), "vectors": w.Deleted("vectors", 3), "equal": w.EqualDeleted("equal", 2), "evolved": w.Evolved("evolved", 2)} {
		t.Run(name, func(t *testing.T) {
			splits := planOf(t, openTable(t, made.Metadata(), Selection{}))
			node := openTable(t, made.Metadata(), Selection{})
			rows := make([][]string, len(splits))
			var group sync.WaitGroup
			for i, s := range splits {
				group.Go(func() {
					batches, err := readSplit(t, node, s)
					if err != nil {
						t.Error(err)
					}
					rows[i] = icetest.JSON(t, batches...)
				})
			}
			group.Wait()
			if diff := cmp.Diff(made.Rows(), sorted(slices.Concat(rows...))); diff != "" {
				t.Errorf("rows (-want +got):\n%.2000s", diff)
			}
		})
	}
}
