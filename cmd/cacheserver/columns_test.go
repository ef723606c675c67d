// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
)

func TestColumnsOfTheEnvironment(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"":                 {},
		"id,name":          {"id", "name"},
		`["a,b","c"]`:      {"a,b", "c"},
		`["label \u003e"]`: {"label >"},
		`["a"`:             {`["a"`}, // loading fails and names the column
	} {
		if got := list(text); !slices.Equal(got, want) {
			t.Errorf("list(%q) = %q, want %q", text, got, want)
		}
	}
}
