// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"path"
	"strings"
	"testing"

	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/s3test"
)

// opened is the number of files of each kind that were read from a store.
type opened struct{ manifests, files int }

// traffic returns the files, and the bytes of data files, that were requested from a store since its log was cleared.
func traffic(server *s3test.Server) (of opened, bytes int64) {
	manifests, files := map[string]bool{}, map[string]bool{}
	for _, r := range server.Requests() {
		switch {
		case path.Ext(r.Key) == ".parquet":
			files[r.Key] = true
			bytes += r.Bytes
		case path.Ext(r.Key) == ".avro" && !strings.HasPrefix(path.Base(r.Key), "snap-"): // not a manifest list
			manifests[r.Key] = true
		}
	}
	return opened{len(manifests), len(files)}, bytes
}

// onePartitionEach appends rows so that every file contains one category, with one commit per category or with a single commit.
func onePartitionEach(w *icetest.Warehouse, name string, commits int) *icetest.Table {
	made := w.Create(name, 2, icetest.PlainSchema(), icetest.Partitioned(icetest.Identity(3, 1000, "category")),
		icetest.Property("write.metadata.metrics.default", "none")) // so that no column's statistics exclude a file
	var rows []icetest.Row
	for i := range 50 {
		rows = append(rows, icetest.Row{"id": i, "category": string(rune('a' + i/10))})
	}
	for i := range commits {
		made.Append(rows[i*50/commits : (i+1)*50/commits]...)
	}
	return made
}

// TestPruningReads counts what is read from the store for a filter. For each table, only one stage of pruning can exclude what the
// filter does not keep: if that stage did nothing, the counts would be those without the filter.
func TestPruningReads(t *testing.T) {
	server := s3test.Start(t)
	w := icetest.OnS3(t, server, "lake")
	tests := map[string]struct {
		table         *icetest.Table
		filter        string
		whole, pruned opened
		share         int64 // maximum percentage of the data files' bytes that may be read with the filter
	}{
		"manifests, by their partitions": {
			onePartitionEach(w, "manifests", 5), "category = 'c'", opened{5, 5}, opened{1, 1}, 25},
		"files, by their partition": {
			onePartitionEach(w, "partitions", 1), "category = 'c'", opened{1, 5}, opened{1, 1}, 25},
		"files, by their columns' bounds": {
			w.Plain("bounds", 2, 5, 10, 100), "id BETWEEN 20 AND 29", opened{5, 5}, opened{5, 1}, 25},
		"row groups, by their statistics": {
			w.Plain("groups", 2, 1, 20_000, 4_000), "id BETWEEN 8000 AND 11999", opened{1, 1}, opened{1, 1}, 30},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			load := func(filter string) (of opened, bytes, rows int64) {
				server.Forget()
				tbl, err := Open(t.Context(), s3Store(t, server), Location{Metadata: tt.table.Metadata()}, Selection{Filter: filter})
				if err != nil {
					t.Fatal(err)
				}
				rows = rowsOf(readAll(t, tbl, planOf(t, tbl)))
				of, bytes = traffic(server)
				return of, bytes, rows
			}
			whole, most, all := load("")
			pruned, bytes, kept := load(tt.filter)
			if all != int64(tt.table.Len()) || kept != all/5 {
				t.Errorf("%d rows, of which the filter keeps %d; want %d and a fifth", all, kept, tt.table.Len())
			}
			if whole != tt.whole || pruned != tt.pruned {
				t.Errorf("opened %+v, with the filter %+v; want %+v and %+v", whole, pruned, tt.whole, tt.pruned)
			}
			if bytes > most*tt.share/100 {
				t.Errorf("%d bytes of data files were read with the filter, %d without, want at most %d %%", bytes, most, tt.share)
			}
			t.Logf("%d bytes of data files, %d without the filter", bytes, most)
		})
	}
}
