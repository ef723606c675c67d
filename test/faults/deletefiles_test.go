// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"maps"
	"os/exec"
	"strings"
	"testing"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/icetest"
)

// without returns an edit of manifests that sets a field of every file to null.
func without(field string) func(*icetest.Avro) { return with(field, nil) }

// with returns an edit of manifests that sets a field of every file.
func with(field string, value any) func(*icetest.Avro) {
	return func(f *icetest.Avro) {
		for _, file := range f.Files() {
			file[field] = value
		}
	}
}

// entries returns an edit of manifests that sets fields of every entry.
func entries(set map[string]any) func(*icetest.Avro) {
	return func(f *icetest.Avro) {
		for _, r := range f.Records {
			maps.Copy(r, set)
		}
	}
}

// TestIncompleteDeleteFiles removes from manifests what Iceberg requires of a delete file. A reader that went on without it would
// serve deleted rows, or drop others.
func TestIncompleteDeleteFiles(t *testing.T) {
	t.Parallel()
	positions := func(w *icetest.Warehouse) *icetest.Table { return w.Deleted("positions", 2) }
	vectors := func(w *icetest.Warehouse) *icetest.Table { return w.Deleted("vectors", 3) }
	equality := func(w *icetest.Warehouse) *icetest.Table { return w.EqualDeleted("equality", 2) }
	existing := map[string]any{"status": 0, "sequence_number": nil}
	for name, tt := range map[string]struct {
		table func(*icetest.Warehouse) *icetest.Table
		data  bool // edit the manifests of data files
		edit  func(*icetest.Avro)
		want  []string
	}{
		"vector: no data file":            {vectors, false, without("referenced_data_file"), []string{".puffin", "referenced_data_file"}},
		"vector: empty name of data file": {vectors, false, with("referenced_data_file", ""), []string{".puffin", "referenced_data_file"}},
		"vector: no offset":               {vectors, false, without("content_offset"), []string{".puffin", "content_offset"}},
		"vector: no size":                 {vectors, false, without("content_size_in_bytes"), []string{".puffin", "content_size_in_bytes"}},
		"vector: negative size":           {vectors, false, with("content_size_in_bytes", int64(-1)), []string{".puffin", "content_size_in_bytes"}},
		"equality: no fields":             {equality, false, without("equality_ids"), []string{".parquet", "equality_ids"}},
		"equality: empty fields":          {equality, false, with("equality_ids", []any{}), []string{".parquet", "equality_ids"}},
		"equality: unknown field":         {equality, false, with("equality_ids", []any{77}), []string{".parquet", "equality_ids", "77"}},
		"equality: no sequence number":    {equality, false, entries(existing), []string{".parquet", "sequence_number"}},
		"positions: no sequence number":   {positions, false, entries(existing), []string{".parquet", "sequence_number"}},
		"vector: no sequence number":      {vectors, false, entries(existing), []string{".puffin", "sequence_number"}},
		"data: no sequence number":        {equality, true, entries(existing), []string{".parquet", "sequence_number"}},
		"positions: no rows":              {positions, false, with("record_count", int64(0)), []string{".parquet", "footer", "manifest 0"}},
		"equality: no rows":               {equality, false, with("record_count", int64(0)), []string{".parquet", "footer", "manifest 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			made := tt.table(icetest.In(t, t.TempDir()))
			accepted(t, made.Metadata())
			made.EditManifests(!tt.data, tt.edit)
			refused(t, made.Metadata(), tt.want...)
		})
	}
}

// TestIncompleteManifestLists removes from manifest lists what decides whether a manifest is read.
func TestIncompleteManifestLists(t *testing.T) {
	t.Parallel()
	for _, field := range []string{
		"content", "sequence_number", "min_sequence_number", "partition_spec_id", "added_files_count", "existing_files_count",
	} {
		for how, edit := range map[string]func(*icetest.Avro){
			"missing": func(f *icetest.Avro) { f.Drop(field) },
			"null": func(f *icetest.Avro) {
				f.Optional(field)
				for _, r := range f.Records {
					r[field] = nil
				}
			},
		} {
			t.Run(field+" "+how, func(t *testing.T) {
				t.Parallel()
				made := icetest.In(t, t.TempDir()).EqualDeleted("equality", 2)
				made.EditLists(edit)
				refused(t, made.Metadata(), "snap-", field)
			})
		}
	}
	for name, set := range map[string]map[string]any{
		"no files":             {"added_files_count": 0, "existing_files_count": 0},
		"low sequence number":  {"sequence_number": int64(0)},
		"high sequence number": {"min_sequence_number": int64(1000)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			made := icetest.In(t, t.TempDir()).EqualDeleted("equality", 2)
			made.EditLists(entries(set))
			for field := range set {
				refused(t, made.Metadata(), ".avro", field)
			}
		})
	}
}

// accepted checks that a table can be planned.
func accepted(t *testing.T, metadata string) {
	t.Helper()
	if out, err := inspected(t, metadata); err != nil {
		t.Fatalf("inspect: %v: %s", err, out)
	}
}

// refused checks that a table can't be planned, and that the reason contains the parts.
func refused(t *testing.T, metadata string, parts ...string) {
	t.Helper()
	out, err := inspected(t, metadata)
	if err == nil {
		t.Fatalf("the table was planned:\n%s", out)
	}
	for _, part := range parts {
		if !strings.Contains(out, part) {
			t.Errorf("the reason lacks %q: %s", part, out)
		}
	}
}

// inspected runs cacheserver inspect, without the comparison of numbers of rows and files, which would refuse most edited manifests.
func inspected(t *testing.T, metadata string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(deadline.Context(t), binary, "inspect", "--trust-manifests", "--metadata", metadata)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
