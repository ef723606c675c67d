// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"encoding/binary"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// wantError checks that the text of an error contains all parts.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(part)) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
}

// TestBadFilesAtPlan damages a data file before the plan.
func TestBadFilesAtPlan(t *testing.T) {
	tests := map[string]struct {
		spoil func(t *testing.T, name string)
		want  []string
	}{
		"missing": {func(t *testing.T, name string) {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}, []string{"no such file"}},
		"truncated": {func(t *testing.T, name string) {
			data := readFile(t, name)
			writeFile(t, name, data[:len(data)-100])
		}, []string{"truncated or replaced", "restore"}},
		"empty":       {func(t *testing.T, name string) { writeFile(t, name, nil) }, []string{"it has 0 bytes", "truncated or replaced"}},
		"wrong magic": {func(t *testing.T, name string) { writeFile(t, name, make([]byte, len(readFile(t, name)))) }, []string{"footer cannot be read", "magic"}},
		"other rows":  {func(t *testing.T, name string) { copyFile(t, otherFile(t), name) }, []string{"truncated or replaced"}},
		"other rows in as many bytes": {func(t *testing.T, name string) {
			writeFile(t, name, padded(readFile(t, otherFile(t)), len(readFile(t, name))))
		}, []string{"footer has 7 rows", "manifest 100"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			made := icetest.Local(t).Plain("t", 2, 3, 100, 32)
			tbl := openTable(t, made.Metadata(), Selection{})
			file := planOf(t, tbl)[5].File
			tt.spoil(t, file)
			_, err := openTable(t, made.Metadata(), Selection{}).Plan(t.Context(), nil)
			wantError(t, err, append(tt.want, file)...)
		})
	}
}

// padded inserts zeros between a Parquet file's pages and its footer until it has size bytes. Offsets in the footer stay valid.
func padded(file []byte, size int) []byte {
	footer := len(file) - 8 - int(binary.LittleEndian.Uint32(file[len(file)-8:]))
	return slices.Concat(file[:footer], make([]byte, size-len(file)), file[footer:])
}

// otherFile is a data file of seven rows.
func otherFile(t *testing.T) string {
	t.Helper()
	made := icetest.Local(t).Plain("other", 2, 1, 7, 100)
	return planOf(t, openTable(t, made.Metadata(), Selection{}))[0].File
}

// TestBadFilesAtFetch damages a data file between plan and load; the node either has or has not read its footer before.
func TestBadFilesAtFetch(t *testing.T) {
	tests := map[string]struct {
		spoil func(t *testing.T, name string)
		want  []string
	}{
		"missing": {func(t *testing.T, name string) {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}, []string{"no such file"}},
		"truncated": {func(t *testing.T, name string) {
			data := readFile(t, name)
			writeFile(t, name, data[:len(data)/2])
		}, []string{"restore"}},
		"replaced":      {func(t *testing.T, name string) { copyFile(t, otherFile(t), name) }, []string{"restore it or start the cache anew"}},
		"written again": {func(t *testing.T, name string) { writeAgain(t, name) }, []string{"changed since the table was planned", "start the cache anew"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			made := icetest.Local(t).Plain("t", 2, 3, 100, 32)
			tbl := openTable(t, made.Metadata(), Selection{})
			split := planOf(t, tbl)[5]
			tt.spoil(t, split.File)
			_, err := readSplit(t, tbl, split)
			wantError(t, err, append(tt.want, split.File)...)
			_, err = readSplit(t, openTable(t, made.Metadata(), Selection{}), split)
			wantError(t, err, append(tt.want, split.File)...)
		})
	}
}

// TestCorruptPages flips bytes of column chunks throughout a file. A flip in a value can't be detected (the files have no checksums),
// but a flip must never cause a panic, a hang or a wrong number of rows, and every error names file and row group.
func TestCorruptPages(t *testing.T) {
	made := icetest.Local(t).Plain("t", 2, 1, 300, 100)
	nested := icetest.Local(t).Nested("n", 2)
	for name, made := range map[string]*icetest.Table{"plain": made, "nested": nested} {
		t.Run(name, func(t *testing.T) {
			tbl := openTable(t, made.Metadata(), Selection{})
			splits := planOf(t, tbl)
			good := readFile(t, splits[0].File)
			random := seedtest.New(t)
			failed := 0
			for range 120 {
				s := splits[random.IntN(len(splits))]
				s.Version = "" // so that the change of the file's modification time does not matter
				bad := append([]byte(nil), good...)
				for range 1 + random.IntN(3) {
					bad[s.Start+random.Int64N(s.Length)] ^= byte(1 + random.IntN(255))
				}
				writeFile(t, s.File, bad)
				batches, err := readSplit(t, tbl, s)
				if err != nil {
					failed++
					wantError(t, err, s.File, "row group")
				} else if n := rowsOf(batches); n != s.Rows {
					t.Fatalf("%d rows without an error, want %d", n, s.Rows)
				}
			}
			if failed == 0 {
				t.Error("no flip was noticed")
			}
		})
	}
}

// writeAgain overwrites a file with as many bytes, a second later.
func writeAgain(t *testing.T, name string) {
	t.Helper()
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, name, readFile(t, name))
	if err := os.Chtimes(name, time.Time{}, info.ModTime().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
}

// TestWrittenWhileDecoded overwrites a local file after its split was fetched.
func TestWrittenWhileDecoded(t *testing.T) {
	made := icetest.Local(t).Plain("t", 2, 1, 100, 100)
	tbl := openTable(t, made.Metadata(), Selection{})
	split := planOf(t, tbl)[0]
	f, err := tbl.Fetch(t.Context(), split, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	writeAgain(t, split.File)
	for b, err2 := range f.Batches(t.Context(), nil) {
		if err = err2; err == nil {
			b.Release()
		}
	}
	wantError(t, err, split.File, "changed while it was read")
}

func TestBadDeleteFiles(t *testing.T) {
	for version, kind := range map[int]string{2: "delete file", 3: "deletion vector"} {
		t.Run(kind, func(t *testing.T) {
			made := icetest.Local(t).Deleted("t", version)
			tbl := openTable(t, made.Metadata(), Selection{})
			plan, err := tbl.files(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			splits := planOf(t, tbl)
			d, _ := plan.find(splits[0].Sequence, splits[0].File)
			deletes := append(d.deletes.position, d.deletes.vectors...)
			data := readFile(t, deletes[0].FilePath())
			writeFile(t, deletes[0].FilePath(), data[:len(data)-20])
			fresh := openTable(t, made.Metadata(), Selection{})
			_, err = readSplit(t, fresh, splits[0])
			wantError(t, err, kind, deletes[0].FilePath(), splits[0].File)
			_, err = fresh.Plan(t.Context(), nil)
			wantError(t, err, kind, deletes[0].FilePath(), "plan")

			if err := os.Remove(deletes[0].FilePath()); err != nil {
				t.Fatal(err)
			}
			_, err = readSplit(t, fresh, splits[0])
			wantError(t, err, deletes[0].FilePath(), "no such file")

			writeFile(t, deletes[0].FilePath(), data)
			if _, err := readSplit(t, tbl, splits[0]); err != nil {
				t.Errorf("after the file was restored: %v", err)
			}
		})
	}
}

// TestCorruptMetadata flips bytes of manifests, the manifest list and the metadata file: the result may be an error or another plan,
// but never a panic.
func TestCorruptMetadata(t *testing.T) {
	dir := t.TempDir()
	made := icetest.In(t, dir).Deleted("t", 2)
	files, err := os.ReadDir(dir + "/t/metadata")
	if err != nil {
		t.Fatal(err)
	}
	random := seedtest.New(t)
	failed := 0
	for range 100 {
		name := dir + "/t/metadata/" + files[random.IntN(len(files))].Name()
		good := readFile(t, name)
		bad := append([]byte(nil), good...)
		bad[random.IntN(len(bad))] ^= byte(1 + random.IntN(255))
		writeFile(t, name, bad)
		tbl, err := Open(t.Context(), newStore(), Location{Metadata: made.Metadata()}, Selection{Filter: "id > 3"})
		if err == nil {
			_, err = tbl.Plan(t.Context(), nil)
		}
		if err != nil {
			failed++
		}
		writeFile(t, name, good)
	}
	if failed == 0 {
		t.Error("no flip was noticed")
	}
}
