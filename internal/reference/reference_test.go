// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"slices"
	"testing"
)

func TestNames(t *testing.T) {
	for uri, want := range map[string][]string{
		"":                              nil,
		"cache://web,code":              nil,
		"datacache://":                  {""},
		"datacache://web":               {"web"},
		"datacache://web,code,b/books":  {"web", "code", "b/books"},
		"datacache://web,, code,/,web,": {"web", "", " code", "/", "web", ""},
	} {
		if got := Names(uri); !slices.Equal(got, want) {
			t.Errorf("Names(%q) = %q, want %q", uri, got, want)
		}
	}
}

func TestDataset(t *testing.T) {
	for name, want := range map[string]string{"web": "", "b/books": "", "b/books/tok": "tok", "b/books/a/b": "a/b", "": ""} {
		if got := Dataset(name); got != want {
			t.Errorf("Dataset(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestDerived(t *testing.T) {
	for step, want := range map[string]string{"": "", `{"image":"tok:3","dataset":"tok"}`: "tok", "tok": ""} {
		if got := Derived(step); got != want {
			t.Errorf("Derived(%q) = %q, want %q", step, got, want)
		}
	}
}

// TestNamedService has the names that python/tests/test_services.py expects too.
func TestNamedService(t *testing.T) {
	for name, want := range map[string]string{
		"code":         "train-cache-service-5694d08a",
		"team-b/books": "train-cache-service-dbd1502b",
	} {
		if got := NamedService("train", name); got != want {
			t.Errorf("NamedService of %q is %s, want %s", name, got, want)
		}
	}
}
