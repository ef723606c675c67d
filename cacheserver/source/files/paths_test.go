// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source/glob"
)

func TestColumnsOfFolderNames(t *testing.T) {
	tests := map[string]struct {
		paths []string
		want  string // names and types, or a part of the error
	}{
		"none":              {[]string{"a.parquet", "b/c.parquet"}, ""},
		"integers":          {[]string{"n=0/a", "n=-9223372036854775808/a"}, "n:int64"},
		"too large":         {[]string{"n=0/a", "n=9223372036854775808/a"}, "n:utf8"},
		"leading zero":      {[]string{"n=1/a", "n=01/a"}, "n:utf8"},
		"plus":              {[]string{"n=+1/a"}, "n:utf8"},
		"dates":             {[]string{"d=2026-02-28/a", "d=__HIVE_DEFAULT_PARTITION__/a"}, "d:date32"},
		"no such day":       {[]string{"d=2026-02-29/a"}, "d:utf8"},
		"only nulls":        {[]string{"d=__HIVE_DEFAULT_PARTITION__/a"}, "d:utf8"},
		"empty":             {[]string{"d=/a", "d=1/a"}, "d:utf8"},
		"order of folders":  {[]string{"x/b=1/y/a=c%3D/f"}, "b:int64 a:utf8"},
		"another key":       {[]string{"a=1/f", "b=1/f"}, "name the columns"},
		"one level less":    {[]string{"a=1/b=1/f", "a=1/f"}, "name the columns"},
		"twice":             {[]string{"a=1/a=1/f"}, "two folders give column"},
		"broken escape":     {[]string{"a=%zz/f"}, "broken escape"},
		"no UTF-8 text":     {[]string{"a=1/f", "a=%FF/f"}, `the folder "a=%FF" is no UTF-8 text`},
		"the file's name":   {[]string{"a=1.parquet"}, ""},
		"no name before it": {[]string{"=1/f"}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			fields, err := partitionFields(filesAt(tt.paths...), nil)
			var got []string
			for _, f := range fields {
				got = append(got, f.Name+":"+f.Type.String())
			}
			if err == nil && strings.Join(got, " ") != tt.want || err != nil && (tt.want == "" || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, %v, want %s", got, err, tt.want)
			}
		})
	}
}

// FuzzPaths checks that paths, which come from a listing, break nothing, and that each file has a value of each column of folder names.
func FuzzPaths(f *testing.F) {
	f.Add("day=2026-01-31/x=a%2Fb/part-0.parquet", "day=2026-02-01/x=1/_SUCCESS", "**/x=*/[a-z]*")
	f.Add("_delta_log/0.json", "metadata/1.metadata.json", "*")
	f.Add("partial-train/0000.parquet", "_started_1", "[")
	f.Fuzz(func(t *testing.T, a, b, pattern string) {
		glob.Matches(pattern, a)
		all := filesAt(a, b)
		_ = refuse("s3://bucket/", []objstore.Entry{all[0].Entry, all[1].Entry})
		fields, err := partitionFields(all, nil)
		if err != nil {
			return
		}
		columns := column.FieldsOf(fields)
		for _, file := range all {
			values, err := partitionValues(file.Path, columns)
			if err != nil || len(values) != len(columns) {
				t.Errorf("%q and %q have the columns %v, but %q has no values: %v", a, b, arrow.NewSchema(fields, nil), file.Path, err)
			}
		}
	})
}

// FuzzList checks that the text of a list names each file once, by an address that may be named, or is refused.
func FuzzList(f *testing.F) {
	f.Add("s3://bucket/a.parquet\r\n\n/data/b.parquet")
	f.Add("hf://a/b/c.parquet\n")
	f.Add("s3://bucket/a.parquet\n s3://bucket/a.parquet\t")
	f.Fuzz(func(t *testing.T, text string) {
		files, err := parseList(text)
		if (err == nil) == (len(files) == 0) {
			t.Errorf("%d files, %v", len(files), err)
		}
		seen := map[string]bool{}
		for _, file := range files {
			if seen[file.URI] || !strings.Contains(text, file.URI) || !listedURI.MatchString(file.URI) {
				t.Errorf("%q is named twice, or is no address", file.URI)
			}
			seen[file.URI] = true
		}
	})
}

func filesAt(paths ...string) []file {
	files := make([]file, len(paths))
	for i, p := range paths {
		files[i] = file{objstore.Entry{URI: "s3://bucket/" + p, Path: p}}
	}
	return files
}
