// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/parquettest"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

const (
	bucket      = "lake"
	metadataKey = "metadata/v1.metadata.json"
	listKey     = "metadata/snap-1.avro"
	dataFolder  = "data/"

	// latency is the time that each request takes at least.
	latency = 20 * time.Millisecond
	// perManifest is the number of data files that a manifest lists.
	perManifest = 256
	// rowsOfFile and columnsOfFile are those of each data file.
	rowsOfFile, columnsOfFile = 5000, 10
)

// lake is an S3 server with an Iceberg table of many data files, which are also a folder of files. All have the same content, and tags and
// names of their own.
type lake struct {
	url     string
	files   int
	content []byte            // of each data file
	objects map[string][]byte // by key, all others
	// Requests for manifests, and of head and data nodes for data files. The first ones are answered once so many are in progress that the
	// gate is open; those of the head also wait for the gate of the data nodes.
	manifests, heads, nodes *gate
}

// gate counts requests, and opens when a number of them have come. The first ones need not wait for it.
type gate struct {
	free, opens int

	mu     sync.Mutex
	total  int
	bytes  int64 // sent to clients
	missed bool  // whoever waited for the gate gave up
	opened chan struct{}
}

func newGate(free, opens int) *gate {
	return &gate{free: free, opens: opens, opened: make(chan struct{})}
}

// count counts a request, and returns whether it should wait.
func (g *gate) count() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.total++; g.total == g.opens {
		g.openLocked()
	}
	return g.total > g.free
}

func (g *gate) openLocked() {
	select {
	case <-g.opened:
	default:
		close(g.opened)
	}
}

// wait waits until the gate is open.
func (g *gate) wait() {
	err := deadline.Start().Poll(func() error {
		select {
		case <-g.opened:
			return nil
		default:
			return errors.New("closed")
		}
	})
	if err == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.missed = true
	g.openLocked()
}

func (g *gate) sent(bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.bytes += bytes
}

func (g *gate) counts() (requests int, bytes int64, missed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.total, g.bytes, g.missed
}

// startLake starts a lake with a number of data files; nodesFirst says that data nodes must have read a part of them before the head.
func startLake(t *testing.T, files int, nodesFirst bool) *lake {
	t.Helper()
	l := &lake{files: files, content: dataFile(t), objects: map[string][]byte{}, manifests: newGate(0, 8), heads: newGate(1, 1+200), nodes: newGate(512, 513)}
	if !nodesFirst {
		l.nodes.openLocked()
	}
	l.writeTable(t)
	l.url = proctest.Serve(t, "127.0.0.1:0", http.HandlerFunc(l.serve)).URL
	return l
}

func (l *lake) uri(key string) string { return "s3://" + bucket + "/" + key }

// key is the name of a data file.
func (l *lake) key(i int) string {
	x := uint64(i)*0x9E3779B97F4A7C15 + 1
	return fmt.Sprintf("%s%03d/%07d-%d-%016x%016x-00001.parquet", dataFolder, i/10_000, i, i%7, x, x^x>>31)
}

// tag is the entity tag of a data file.
func tag(key string) string {
	digest := fnv.New128a()
	digest.Write([]byte(key))
	return fmt.Sprintf("%q", fmt.Sprintf("%x", digest.Sum(nil)))
}

func (l *lake) serve(w http.ResponseWriter, r *http.Request) {
	time.Sleep(latency) //nolint:forbidigo // a slow store
	key := strings.TrimPrefix(r.URL.Path, "/"+bucket+"/")
	content, other := l.objects[key]
	of := l.heads
	switch {
	case r.URL.Query().Has("list-type"):
		l.list(w, r)
		return
	case key == metadataKey || key == listKey:
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
		return
	case other:
		of = l.manifests
	case strings.HasSuffix(key, ".parquet"):
		content = l.content
		w.Header().Set("ETag", tag(key))
		if strings.Contains(r.Header.Get("Authorization"), "Credential="+nodeKey+"/") {
			of = l.nodes
		}
	default:
		http.NotFound(w, r)
		return
	}
	if of.count() {
		of.wait()
	}
	if of == l.heads {
		l.nodes.wait()
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	sent, _ := strconv.ParseInt(w.Header().Get("Content-Length"), 10, 64)
	of.sent(sent)
}

// list lists a thousand data files.
func (l *lake) list(w http.ResponseWriter, r *http.Request) {
	first, _ := strconv.Atoi(r.URL.Query().Get("continuation-token"))
	end := min(first+1000, l.files)
	if r.URL.Query().Get("prefix") != dataFolder {
		end = first
	}
	fmt.Fprintf(w, `<ListBucketResult><IsTruncated>%t</IsTruncated><NextContinuationToken>%d</NextContinuationToken>`, first < end && end < l.files, end)
	for i := first; i < end; i++ {
		key := l.key(i)
		fmt.Fprintf(w, `<Contents><Key>%s</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>%s</ETag><Size>%d</Size></Contents>`, key, strings.ReplaceAll(tag(key), `"`, "&quot;"), len(l.content))
	}
	fmt.Fprint(w, `</ListBucketResult>`)
}

// dataFile is the content of each data file.
func dataFile(t *testing.T) []byte {
	var fields []arrow.Field
	for i := range columnsOfFile {
		fields = append(fields, arrow.Field{Name: fmt.Sprintf("column_%d", i), Type: arrow.PrimitiveTypes.Int64, Metadata: arrow.NewMetadata([]string{"PARQUET:field_id"}, []string{strconv.Itoa(i + 1)})})
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	defer b.Release()
	for row := range int64(rowsOfFile) {
		for i := range fields {
			b.Field(i).(*array.Int64Builder).Append(row * 7919 * int64(i+1))
		}
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	return parquettest.Write(t, rec, parquet.NewWriterProperties(parquet.WithDictionaryDefault(false)), pqarrow.DefaultWriterProps())
}

// writeTable writes the table's metadata and manifests.
func (l *lake) writeTable(t *testing.T) {
	t.Helper()
	var fields []ice.NestedField
	for i := range columnsOfFile {
		fields = append(fields, ice.NestedField{ID: i + 1, Name: fmt.Sprintf("column_%d", i), Type: ice.PrimitiveTypes.Int64})
	}
	schema := ice.NewSchema(0, fields...)
	snapshot, sequence := int64(1), int64(1)
	var manifests []ice.ManifestFile
	for first := 0; first < l.files; first += perManifest {
		var entries []ice.ManifestEntry
		for i := first; i < min(first+perManifest, l.files); i++ {
			entries = append(entries, ice.NewManifestEntry(ice.EntryStatusADDED, &snapshot, nil, nil, l.entry(t, i)))
		}
		var out bytes.Buffer
		key := fmt.Sprintf("metadata/%06d-m0.avro", first)
		m, err := ice.WriteManifest(l.uri(key), &out, 2, *ice.UnpartitionedSpec, schema, snapshot, entries)
		if err != nil {
			t.Fatal(err)
		}
		l.objects[key] = out.Bytes()
		manifests = append(manifests, m)
	}
	var out bytes.Buffer
	if err := ice.WriteManifestList(2, &out, snapshot, nil, &sequence, 0, manifests); err != nil {
		t.Fatal(err)
	}
	l.objects[listKey] = out.Bytes()
	text, err := json.Marshal(map[string]any{
		"format-version": 2, "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1", "location": "s3://" + bucket,
		"last-sequence-number": sequence, "last-updated-ms": 1767225600000, "last-column-id": columnsOfFile,
		"current-schema-id": 0, "schemas": []any{schema},
		"default-spec-id": 0, "partition-specs": []any{map[string]any{"spec-id": 0, "fields": []any{}}}, "last-partition-id": 999,
		"default-sort-order-id": 0, "sort-orders": []any{map[string]any{"order-id": 0, "fields": []any{}}},
		"current-snapshot-id": snapshot, "snapshots": []any{map[string]any{
			"snapshot-id": snapshot, "sequence-number": sequence, "timestamp-ms": 1767225600000, "schema-id": 0, "manifest-list": l.uri(listKey),
			"summary": map[string]string{"operation": "append", "total-data-files": strconv.Itoa(l.files), "total-records": strconv.Itoa(l.files * rowsOfFile)},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	l.objects[metadataKey] = text
}

// entry is a data file as a manifest lists it, with statistics of all columns.
func (l *lake) entry(t *testing.T, i int) ice.DataFile {
	t.Helper()
	b, err := ice.NewDataFileBuilder(*ice.UnpartitionedSpec, ice.EntryContentData, l.uri(l.key(i)), ice.ParquetFile, nil, nil, nil, rowsOfFile, int64(len(l.content)))
	if err != nil {
		t.Fatal(err)
	}
	sizes, values, nulls := map[int]int64{}, map[int]int64{}, map[int]int64{}
	lower, upper := map[int][]byte{}, map[int][]byte{}
	for id := 1; id <= columnsOfFile; id++ {
		sizes[id], values[id], nulls[id] = int64(len(l.content)/columnsOfFile), rowsOfFile, 0
		lower[id], upper[id] = make([]byte, 8), []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}
	}
	return b.ColumnSizes(sizes).ValueCounts(values).NullValueCounts(nulls).LowerBoundValues(lower).UpperBoundValues(upper).SplitOffsets([]int64{4}).Build()
}
