// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package glob

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestGlobs(t *testing.T) {
	paths := []string{"a.parquet", "b/a.parquet", "b/c/a.parquet", "b/c/d.txt", "[x]/a.parquet"}
	tests := map[string][]string{
		"*.parquet":       {"a.parquet"},
		"*/a.parquet":     {"b/a.parquet", "[x]/a.parquet"},
		"**/a.parquet":    {"a.parquet", "b/a.parquet", "b/c/a.parquet", "[x]/a.parquet"},
		"**/**/b/**/c/**": {"b/c/a.parquet", "b/c/d.txt"},
		"**/**":           slices.Clone(paths),
		"b/**":            {"b/a.parquet", "b/c/a.parquet", "b/c/d.txt"},
		"**/c/?.*":        {"b/c/a.parquet", "b/c/d.txt"},
		"[a-c].parquet":   {"a.parquet"},
		"[[]x]/*.parquet": {"[x]/a.parquet"},
		"[":               nil,
	}
	for pattern, want := range tests {
		got := slices.DeleteFunc(slices.Clone(paths), func(p string) bool { return !Matches(pattern, p) })
		if diff := cmp.Diff(want, slices.Clip(got), cmp.Transformer("nil", func(s []string) string { return strings.Join(s, " ") })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", pattern, diff)
		}
	}
	for uri, want := range map[string][2]string{
		"s3://b/x/*.parquet": {"s3://b/x/", "*.parquet"}, "/data/day=*/f": {"/data/", "day=*/f"}, "*": {".", "*"}, "s3://b/**": {"s3://b/", "**"},
	} {
		if root, pattern := Split(uri); root != want[0] || pattern != want[1] {
			t.Errorf("%s is %q and %q, want %q", uri, root, pattern, want)
		}
	}
}

// TestManyFolders checks that a pattern whose ** can stand for folders in many ways takes no time.
func TestManyFolders(t *testing.T) {
	p := strings.Repeat("a/", 40) + "b"
	for pattern, want := range map[string]bool{
		strings.Repeat("**/a/", 20) + "c": false, strings.Repeat("**/a/", 20) + "b": true, strings.Repeat("**/", 20) + "c": false,
	} {
		if got := Matches(pattern, p); got != want {
			t.Errorf("%s matches: %t", pattern, got)
		}
	}
}
