// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestVersion checks that all files name the version in VERSION: what is installed from a commit is what is released from it.
// hack/release/version changes them together.
func TestVersion(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	version := strings.TrimSpace(read("VERSION"))
	if !regexp.MustCompile(`^v\d+\.\d+\.\d+(-rc\.\d+)?$`).MatchString(version) {
		t.Fatalf("VERSION is %q, want v0.2.0 or v0.2.0-rc.1", version)
	}
	number := strings.TrimPrefix(version, "v")
	for name, want := range map[string]string{
		"charts/datacache/Chart.yaml":  "\nversion: " + number + "\nappVersion: " + number + "\n",
		"python/server/pyproject.toml": "\nversion = \"" + strings.ReplaceAll(number, "-rc.", "rc") + "\"\n",
		"python/pyproject.toml":        "\nversion = \"" + strings.ReplaceAll(number, "-rc.", "rc") + "\"\n",
		"CHANGELOG.md":                 "\n## " + version + "\n",
	} {
		if !strings.Contains(read(name), want) {
			t.Errorf("%s lacks %q: run 'make release-version NEW=%s'", name, want, version)
		}
	}
	tag := regexp.MustCompile(`(?:kubeflow/datacache/(?:cacheserver|manager|trainer-manager):|datacache/\w+, newTag: )(v\d[\w.-]*)`)
	found := 0
	for _, ext := range []string{".yaml", ".md", ".go"} {
		for _, name := range filesOf(t, ext) {
			if name == "CHANGELOG.md" {
				continue
			}
			for _, match := range tag.FindAllStringSubmatch(read(name), -1) {
				found++
				if match[1] != version {
					t.Errorf("%s names %s, and VERSION is %s: run 'make release-version NEW=%s'", name, match[0], version, version)
				}
			}
		}
	}
	if found < 10 {
		t.Errorf("%d references of images found, want at least those of manifests, runtimes and docs", found)
	}
}
