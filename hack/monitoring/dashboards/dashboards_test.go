// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

const repository = "../../.."

// TestCommitted checks that the committed dashboards are what the code makes, that Grafana's types have all of their fields, and that
// docs/watch.md says what each panel answers.
func TestCommitted(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	docs := string(read(t, filepath.Join(repository, "docs/watch.md")))
	for _, b := range boards {
		committed := read(t, filepath.Join(repository, "manifests/components/monitoring/dashboards", b.file()))
		built, err := b.json()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(built, committed) {
			t.Errorf("%s is not what hack/monitoring/dashboards makes: run 'make generate'", b.file())
		}
		var d dashboard.Dashboard
		if err := d.UnmarshalJSONStrict(committed); err != nil && err.Error() != "" { // without errors it returns an empty list of them
			t.Errorf("%s: %v", b.file(), err)
		}
		if err := d.Validate(); err != nil {
			t.Errorf("%s: %v", b.file(), err)
		}
		for _, r := range b.rows {
			for _, p := range r.panels {
				if line := "| " + p.title + " | " + p.question + " |"; !strings.Contains(docs, line) {
					t.Errorf("docs/watch.md has no line %q of the dashboard %s", line, b.name)
				}
			}
		}
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
