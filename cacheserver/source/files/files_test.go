// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/test/kit/parquettest"
	"github.com/kubeflow/datacache/test/kit/s3test"
)

const rowsOfFile, rowsOfGroup = 3000, 1000

// dataFile is a file with the columns file and version, which are the same in all rows, and n.
func dataFile(t *testing.T, number, version int64) []byte {
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "file", Type: arrow.PrimitiveTypes.Int64}, {Name: "version", Type: arrow.PrimitiveTypes.Int64}, {Name: "n", Type: arrow.PrimitiveTypes.Int64},
	}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for n := range int64(rowsOfFile) {
		for i, v := range []int64{number, version, n * 7919 % rowsOfFile} {
			b.Field(i).(*array.Int64Builder).Append(v)
		}
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	return parquettest.Write(t, rec, parquet.NewWriterProperties(parquet.WithMaxRowGroupLength(rowsOfGroup), parquet.WithDictionaryDefault(false)), pqarrow.DefaultWriterProps())
}

// load plans on one process and loads on another, and returns the number of the version that was planned and the version of each file's
// rows. It fails the test if rows are missing, twice, in another order, or if a file's rows are of two versions.
func load(t *testing.T, s *Source) (snapshot int64, versions []int64, err error) {
	t.Helper()
	plan, err := s.Plan(t.Context(), nil, nil)
	if err != nil {
		return 0, nil, err
	}
	node := &Source{Store: s.Store}
	opened, err := node.Open(t.Context(), plan.Version, &source.Buffers{})
	if err != nil {
		t.Fatal(err)
	}
	next := int64(0)
	for _, split := range plan.Splits {
		err := fetch(t.Context(), opened, split, func(file, version, n int64) {
			if file == int64(len(versions)) {
				versions = append(versions, version)
			}
			if file != int64(len(versions))-1 || n != next%rowsOfFile*7919%rowsOfFile || version != versions[file] {
				t.Fatalf("row %d is row %d of file %d, version %d", next, n, file, version)
			}
			next++
		})
		if err != nil {
			return 0, nil, err
		}
	}
	if next != int64(len(versions)*rowsOfFile) || len(versions) != 3 {
		t.Fatalf("%d rows of %d files", next, len(versions))
	}
	return plan.Identity.Snapshot, versions, nil
}

func fetch(ctx context.Context, of source.Dataset, split source.Split, row func(file, version, n int64)) error {
	f, err := of.Fetch(ctx, split, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for batch, err := range f.Batches(ctx, nil) {
		if err != nil {
			return err
		}
		for i := range int(batch.NumRows()) {
			at := func(c int) int64 { return batch.Column(c).(*array.Int64).Value(i) }
			row(at(0), at(1), at(2))
		}
		batch.Release()
	}
	return nil
}

// TestOverwrittenAtEveryRequest overwrites the second file at each of the requests of a load in turn: the load is exact, with all rows of
// one version, or it fails.
func TestOverwrittenAtEveryRequest(t *testing.T) {
	srv := s3test.Start(t)
	old, changed := dataFile(t, 1, 0), dataFile(t, 1, 1)
	srv.Put("bucket", "data/0.parquet", dataFile(t, 0, 0))
	srv.Put("bucket", "data/2.parquet", dataFile(t, 2, 0))
	target, err := url.Parse(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(target)
	var left atomic.Int64 // requests before the one at which the file is overwritten
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if left.Add(-1) == 0 {
			srv.Put("bucket", "data/1.parquet", changed)
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)

	loadNow := func() (int64, []int64, error) {
		store := objstore.New(objstore.Config{TailBytes: 4096, S3: objstore.S3{Endpoint: proxy.URL, AccessKeyID: "k", SecretAccessKey: "s"}})
		defer store.Idle()
		return load(t, &Source{Store: store, Location: Location{URIs: []string{"s3://bucket/data/"}}})
	}
	snapshots := map[int64]int64{} // by version of the second file
	for version, data := range map[int64][]byte{0: old, 1: changed} {
		srv.Put("bucket", "data/1.parquet", data)
		if snapshots[version], _, err = loadNow(); err != nil {
			t.Fatal(err)
		}
	}
	outcomes := map[string]int{}
	for at := int64(1); ; at++ {
		srv.Put("bucket", "data/1.parquet", old)
		left.Store(at)
		snapshot, versions, err := loadNow()
		switch {
		case err != nil:
			if !strings.Contains(err.Error(), "data/1.parquet") {
				t.Errorf("request %d: the error names another file: %v", at, err)
			}
			outcomes["failed"]++
		case snapshot != snapshots[versions[1]]:
			t.Errorf("request %d: rows of version %d, planned as %d, want %d", at, versions[1], snapshot, snapshots[versions[1]])
		default:
			outcomes[fmt.Sprint("exact, version ", versions[1])]++
		}
		if left.Load() > 0 { // the load made fewer requests
			break
		}
	}
	t.Log(outcomes)
	for _, outcome := range []string{"failed", "exact, version 0", "exact, version 1"} {
		if outcomes[outcome] == 0 {
			t.Errorf("no load was %q: %v", outcome, outcomes)
		}
	}
}

// TestFilesOnDisksThatChange checks what happens to a planned file that is overwritten, cut off, removed, or beside which another one is
// added, between the plan and the load.
func TestFilesOnDisksThatChange(t *testing.T) {
	write := func(at string, data []byte) error { return os.WriteFile(at, data, 0o600) }
	tests := map[string]struct {
		change func(folder string) error
		says   string // empty: the load is exact
	}{
		"overwritten": {func(folder string) error { return write(filepath.Join(folder, "1.parquet"), dataFile(t, 1, 1)) }, "it changed since the table was planned"},
		"cut off":     {func(folder string) error { return os.Truncate(filepath.Join(folder, "1.parquet"), 1000) }, "planned were"},
		"removed":     {func(folder string) error { return os.Remove(filepath.Join(folder, "1.parquet")) }, "1.parquet"},
		"added":       {func(folder string) error { return write(filepath.Join(folder, "00.parquet"), dataFile(t, 0, 0)) }, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			for i := range int64(3) {
				if err := write(filepath.Join(folder, fmt.Sprint(i, ".parquet")), dataFile(t, i, 0)); err != nil {
					t.Fatal(err)
				}
			}
			s := &Source{Store: objstore.New(objstore.Config{}), Location: Location{URIs: []string{folder}}}
			plan, err := s.Plan(t.Context(), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.change(folder); err != nil {
				t.Fatal(err)
			}
			opened, err := s.Open(t.Context(), plan.Version, &source.Buffers{})
			if err != nil {
				t.Fatal(err)
			}
			rows := 0
			for _, split := range plan.Splits {
				err = errors.Join(err, fetch(t.Context(), opened, split, func(_, _, _ int64) { rows++ }))
			}
			if tt.says == "" && (err != nil || rows != 3*rowsOfFile) || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("%d rows, %v", rows, err)
			}
			pinned := &Source{Store: s.Store, Location: s.Location, Pinned: &plan.Identity.Snapshot}
			if _, err := pinned.Plan(t.Context(), nil, nil); err == nil || !strings.Contains(err.Error(), "files were added, removed or overwritten") {
				t.Errorf("a head without its plan: %v", err)
			}
		})
	}
}
