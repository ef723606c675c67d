// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// kustomization makes a folder with a kustomization in which <datacache> stands for this repository, and returns it. The manifests are
// copied, since kustomize accepts relative paths alone.
func kustomization(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	own := filepath.Join(dir, "own")
	if out, err := exec.CommandContext(t.Context(), "cp", "-r", repository+"/manifests", repository+"/runtimes", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	buckets := readFile(t, repository+"/manifests/object-cache/buckets.json") // which kustomizations of the object cache replace
	for name, content := range map[string][]byte{"kustomization.yaml": []byte(strings.ReplaceAll(text, "<datacache>", "..")), "buckets.json": buckets} {
		if err := os.WriteFile(filepath.Join(own, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return own
}

// TestDocumentedKustomizations renders the kustomizations in docs. Those that name no resources are for what their page is about.
func TestDocumentedKustomizations(t *testing.T) {
	resources := map[string]string{"object-cache.md": "<datacache>/manifests/object-cache"}
	pages, err := filepath.Glob(repository + "/docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```yaml\\n(.*?)```")
	rendered := 0
	for _, page := range pages {
		name := filepath.Base(page)
		for _, match := range block.FindAllStringSubmatch(string(readFile(t, page)), -1) {
			var k struct {
				APIVersion                             string
				Resources, Components, Images, Patches []any
			}
			text := match[1]
			if err := yaml.Unmarshal([]byte(text), &k); err != nil || k.APIVersion != "" || len(k.Resources)+len(k.Components)+len(k.Images)+len(k.Patches) == 0 {
				continue // another file
			}
			if k.Resources == nil {
				base := resources[name]
				if base == "" {
					base = "<datacache>/manifests/base"
				}
				text = "resources: [" + base + "]\n" + text
			}
			rendered++
			t.Logf("%s:\n%s", name, text)
			plain := objectsOf(t, readFile(t, cluster.Render(t, kustomization(t, regexp.MustCompile(`(?s)\n(patches|images):.*`).ReplaceAllString("\n"+text, "\n")))))
			objects := objectsOf(t, readFile(t, cluster.Render(t, kustomization(t, text))))
			if len(objects) == 0 {
				t.Errorf("%s: nothing is rendered of\n%s", name, text)
			}
			if len(k.Patches)+len(k.Images) > 0 && cmp.Equal(objects, plain) {
				t.Errorf("%s: patches and images change nothing in\n%s", name, text)
			}
		}
	}
	if rendered < 7 {
		t.Errorf("%d kustomizations were found, want at least 7", rendered)
	}
}
