// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/s3test"
)

// lake is a table of icetest.PlainSchema whose row index equals its id, on S3 or on disk.
type lake struct {
	t        *testing.T
	s3       *s3test.Server // nil on disk
	dir      string         // on disk
	table    *icetest.Table
	location string   // the table's location, as passed to the head
	files    []string // object keys or paths of the data files, in row order
	rows     int
	width    int  // bytes of the text column, 0 for icetest's default
	alike    bool // most texts are the same, of width bytes, and longer than the least and the greatest
}

const bucket = "lake"

// onS3 makes a table with the given number of files and of rows per file, in row groups of at most group rows, on its own S3 server.
func onS3(t *testing.T, files, rows, group int) *lake {
	t.Helper()
	return compressed(t, "zstd", files, rows, group)
}

// compressed makes a table on S3 whose pages are compressed with a Parquet codec.
func compressed(t *testing.T, codec string, files, rows, group int) *lake {
	t.Helper()
	l := &lake{t: t, s3: s3test.Start(t)}
	l.s3.Bucket(bucket)
	l.fill(icetest.OnS3(t, l.s3, bucket), files, rows, group, icetest.Property("write.parquet.compression-codec", codec))
	return l
}

// onDisk makes a table in a directory.
func onDisk(t *testing.T, files, rows, group int) *lake {
	t.Helper()
	l := &lake{t: t, dir: t.TempDir()}
	l.fill(icetest.In(t, l.dir), files, rows, group)
	return l
}

func (l *lake) fill(w *icetest.Warehouse, files, rows, group int, options ...icetest.Option) {
	l.t.Helper()
	l.table = w.Create("t", 2, icetest.PlainSchema(), append(options, icetest.RowGroup(group))...)
	for range files {
		l.append(rows)
	}
	l.location = l.table.Metadata()
}

// append adds one data file. A head started with an earlier location does not see it.
func (l *lake) append(rows int) {
	l.t.Helper()
	batch := icetest.PlainRows(l.rows, l.rows+rows)
	for i := range batch {
		batch[i]["text"] = l.textOf(l.rows + i)
	}
	before := l.dataFiles()
	l.table.Append(batch...)
	for _, file := range l.dataFiles() {
		if !slices.Contains(before, file) {
			l.files = append(l.files, file)
		}
	}
	l.rows += rows
}

// dataFiles lists the table's data files.
func (l *lake) dataFiles() []string {
	l.t.Helper()
	if l.s3 != nil {
		return slices.DeleteFunc(l.s3.Objects(bucket), func(key string) bool { return !strings.HasSuffix(key, ".parquet") })
	}
	paths, err := filepath.Glob(filepath.Join(l.dir, "t", "data", "*.parquet"))
	if err != nil {
		l.t.Fatal(err)
	}
	return paths
}

// data returns the bytes of a data file.
func (l *lake) data(file int) []byte {
	l.t.Helper()
	if l.s3 != nil {
		return l.s3.Get(bucket, l.files[file])
	}
	text, err := os.ReadFile(l.files[file])
	if err != nil {
		l.t.Fatal(err)
	}
	return text
}

// replace overwrites a data file.
func (l *lake) replace(file int, data []byte) {
	l.t.Helper()
	if l.s3 != nil {
		l.s3.Put(bucket, l.files[file], data)
		return
	}
	if err := os.WriteFile(l.files[file], data, 0o600); err != nil {
		l.t.Fatal(err)
	}
}

// remove deletes a data file.
func (l *lake) remove(file int) {
	l.t.Helper()
	if l.s3 != nil {
		l.s3.Delete(bucket, l.files[file])
		return
	}
	if err := os.Remove(l.files[file]); err != nil {
		l.t.Fatal(err)
	}
}

// name is the last path element of a data file; every message about the file must contain it.
func (l *lake) name(file int) string { return filepath.Base(l.files[file]) }

// all returns the ids of the whole table in row order.
func (l *lake) all() []int64 { return between(0, int64(l.rows)) }

// between returns the ids from lo up to, but not including, hi.
func between(lo, hi int64) []int64 {
	ids := make([]int64, 0, hi-lo)
	for id := lo; id < hi; id++ {
		ids = append(ids, id)
	}
	return ids
}

// textOf returns the content of a row's text column.
func (l *lake) textOf(id int) string {
	text := fmt.Sprintf("text of row %06d", id)
	switch {
	case l.width == 0:
		return text
	case l.alike && id%1000 < 2:
		return [2]string{"a", "z"}[id%1000]
	case l.alike:
		text = "middle"
	}
	return strings.Repeat(text+" ", l.width/len(text)+1)[:l.width]
}

// check returns a batch's ids, and an error if another column has a wrong value for a row's id.
func (l *lake) check(batch arrow.RecordBatch) ([]int64, error) {
	column := func(name string) arrow.Array {
		if found := batch.Schema().FieldIndices(name); len(found) == 1 {
			return batch.Column(found[0])
		}
		return nil
	}
	ids, ok := column("id").(*array.Int64)
	if !ok {
		return nil, wrongf("no id column of int64 in %s", batch.Schema())
	}
	number, category, text := column("number").(*array.Float64), column("category").(*array.String), column("text").(*array.String)
	for i, id := range ids.Int64Values() {
		if number.IsNull(i) != (id%7 == 0) || number.IsValid(i) && number.Value(i) != float64(id)/4 {
			return nil, wrongf("row %d: number is %s", id, number.ValueStr(i))
		}
		if category.IsNull(i) != (id%11 == 0) || category.IsValid(i) && category.Value(i) != string(rune('a'+id%5)) {
			return nil, wrongf("row %d: category is %s", id, category.ValueStr(i))
		}
		if text.Value(i) != l.textOf(int(id)) {
			return nil, wrongf("row %d: text is %.60q", id, text.Value(i))
		}
	}
	return slices.Clone(ids.Int64Values()), nil
}

// plus adds one data file and configures heads to read the table with it.
func (l *lake) plus(rows int) *lake {
	l.t.Helper()
	l.append(rows)
	l.location = l.table.Metadata()
	return l
}

// publish makes the current table a version of a Hadoop table, and configures heads to read that.
func (l *lake) publish(version int) {
	l.t.Helper()
	_, key, _ := strings.Cut(l.table.Metadata(), bucket+"/")
	l.s3.Put(bucket, fmt.Sprintf("t/metadata/v%d.metadata.json", version), l.s3.Get(bucket, key))
	l.s3.Put(bucket, "t/metadata/version-hint.text", fmt.Appendf(nil, "%d", version))
	l.location = "s3://" + bucket + "/t"
}

// The big table is made once, on disk. Its streams have many messages, so they are still in progress when a test disturbs them.
const (
	bigFiles, bigRows, bigGroup, bigWidth = 6, 1000, 250, 4 << 10
	bigBytes                              = bigFiles * bigRows * bigWidth
)

var (
	bigOnce sync.Once
	bigMade lake
)

// big returns the big table for a test, which must not change it.
func big(t *testing.T) *lake {
	t.Helper()
	bigOnce.Do(func() {
		l := lake{t: t, dir: filepath.Join(filepath.Dir(binary), "big"), width: bigWidth}
		l.fill(icetest.In(t, l.dir), bigFiles, bigRows, bigGroup)
		bigMade = l
	})
	if bigMade.location == "" {
		t.Fatal("the big table could not be made; see the test that tried first")
	}
	l := bigMade
	l.t = t
	return &l
}
