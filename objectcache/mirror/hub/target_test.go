// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	t.Parallel()
	sha := strings.Repeat("a", 40)
	for path, want := range map[string]target{
		"/api/whoami-v2":                                 {},
		"/api/models":                                    {},
		"/api/models/gpt2":                               {kind: "models", repo: "gpt2"},
		"/api/models/acme/bert":                          {kind: "models", repo: "acme/bert"},
		"/api/datasets/acme/d/refs":                      {kind: "datasets", repo: "acme/d", part: "refs"},
		"/api/models/gpt2/revision/refs%2Fpr%2F1":        {kind: "models", repo: "gpt2", part: "revision", revision: "refs/pr/1"},
		"/api/models/acme/bert/tree/" + sha + "/a%20dir": {kind: "models", repo: "acme/bert", part: "tree", revision: sha},
		"/gpt2/resolve/main/a%20dir/b%2Bc":               {kind: "models", repo: "gpt2", part: "resolve", revision: "main", file: "a%20dir/b+c"},
		"/datasets/acme/d/resolve/" + sha + "/x.parquet": {kind: "datasets", repo: "acme/d", part: "resolve", revision: sha, file: "x.parquet"},
		"/acme/bert/raw/main/x":                          {},
	} {
		got, ok := parse(path)
		want.path, got.path = "", ""
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(target{})); !ok || diff != "" {
			t.Errorf("%s: ok %v, want/got:\n%s", path, ok, diff)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, path := range []string{
		"", "/", "x", "//", "/acme//bert", "/acme/bert/", "/acme/./bert", "/acme/../bert", "/acme/%2e%2e/bert", "/acme/%2E/x", "/acme/bert%2fx",
		"/acme/bert/resolve/main/a%2fb", "/acme/bert/resolve/main/..%2fb", "/acme/bert/resolve/main/a%5cb", "/acme/bert/resolve/main/a%00",
		"/acme/bert/resolve/a%2f..%2fb/c", "/acme/bert/resolve/%2fa/c", "/acme/bert/resolve/main/%zz", "/acme/bert/resolve/main/a%0d%0ab",
		"/api/models/acme/bert/tree/main/..%2f..",
	} {
		if got, ok := parse(path); ok {
			t.Errorf("%s: %+v, want a refusal", path, got)
		}
	}
}

// TestParsedPathsAreStable checks that the path for the hub parses to itself, so that the hub can't understand another target.
func TestParsedPathsAreStable(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/acme/bert/resolve/main/a%20b%3f%23%25c", "/api/models/acme/bert/tree/refs%2fpr%2f1/d%C3%A9", "/acme/bert/resolve/main/a;b=c&d@e:f"} {
		first, ok := parse(path)
		again, okAgain := parse(first.path)
		if diff := cmp.Diff(first, again, cmp.AllowUnexported(target{})); !ok || !okAgain || diff != "" {
			t.Errorf("%s: %v %v\n%s", path, ok, okAgain, diff)
		}
	}
}
