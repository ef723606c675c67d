// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source"
	parquetfiles "github.com/kubeflow/datacache/cacheserver/source/files"
	"github.com/kubeflow/datacache/test/kit/hubtest"
	"github.com/kubeflow/datacache/test/kit/parquettest"
)

// parquetRows is a Parquet file of n rows in groups of 50: an id from first on, and a pad of 10 kB, so that a file has several of a mirror's
// blocks.
func parquetRows(t *testing.T, first, n int) hubtest.File {
	t.Helper()
	fields := []arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "pad", Type: arrow.BinaryTypes.String}}
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	defer b.Release()
	for id := first; id < first+n; id++ {
		b.Field(0).(*array.Int64Builder).Append(int64(id))
		b.Field(1).(*array.StringBuilder).Append(content("pad", id, 10_000))
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	written := parquettest.Write(t, rec, parquet.NewWriterProperties(parquet.WithMaxRowGroupLength(50), parquet.WithDictionaryDefault(false)), pqarrow.DefaultWriterProps())
	return hubtest.File{Text: string(written), LFS: true}
}

// idsThroughHub reads the column id of a data set as a cache server with a hub's endpoint does.
func idsThroughHub(t *testing.T, endpoint, token, uri string) (ids []any) {
	t.Helper()
	store := objstore.New(objstore.Config{Hub: objstore.Hub{Endpoint: endpoint, TokenFile: write(t, filepath.Join(t.TempDir(), "token"), token)}})
	s := &parquetfiles.Source{Store: store, Location: parquetfiles.Location{URIs: []string{uri}}}
	plan, err := s.Plan(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	opened, err := s.Open(t.Context(), plan.Version, &source.Buffers{})
	if err != nil {
		t.Fatal(err)
	}
	for _, split := range plan.Splits {
		fetched, err := opened.Fetch(t.Context(), split, 0)
		if err != nil {
			t.Fatal(err)
		}
		for batch, err := range fetched.Batches(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			for i := range int(batch.NumRows()) {
				ids = append(ids, batch.Column(0).(*array.Int64).Value(i))
			}
			batch.Release()
		}
		fetched.Close()
	}
	return ids
}

// TestHubParquetRows reads a gated data set through mirrors, as the library datasets and as a cache server read it: both have the same rows in
// the same order, whichever node they ask.
func TestHubParquetRows(t *testing.T) {
	t.Parallel()
	card := "---\nconfigs:\n- config_name: default\n  data_files:\n  - {split: train, path: [\"b/*\", \"a/*\"]}\n  - {split: test, path: \"test*\"}\n---\n"
	data := &hubtest.Repo{Kind: "datasets", ID: "acme/data", Gated: true, Readers: []string{hubToken}, Files: map[string]hubtest.File{
		"README.md": {Text: card}, "a/1.parquet": parquetRows(t, 0, 900), "b/2.parquet": parquetRows(t, 5000, 100), "b/10.parquet": parquetRows(t, 7000, 70), "test.parquet": parquetRows(t, 9000, 5),
	}}
	hub := hubtest.Start(t, data)
	m := startMirrors(t, 2, hub, "24h")
	var want []any
	for _, part := range [][2]int{{7000, 70}, {5000, 100}, {0, 900}} {
		for i := range part[1] {
			want = append(want, int64(part[0]+i))
		}
	}
	whole := job{"do": "rows", "repo": "acme/data", "column": "id"}
	wantResult(t, "datasets", hubClients(t, m.nodes[0].mirror()+"/hub", token, whole)[0], map[string]any{"whole": want, "stream": want})
	for i, node := range m.nodes {
		got := idsThroughHub(t, node.mirror()+"/hub", token, "hf://acme/data?split=train")
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("node %d: a cache server has %d rows, %v, want %d", i, len(got), got[:min(len(got), 5)], len(want))
		}
	}
}
