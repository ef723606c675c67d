// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// krewPlugin is the schema of a manifest in krew's index: sigs.k8s.io/krew v0.5.0 pkg/index/types.go.
type krewPlugin struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string         `json:"version"`
		ShortDescription string         `json:"shortDescription"`
		Description      string         `json:"description"`
		Caveats          string         `json:"caveats"`
		Homepage         string         `json:"homepage"`
		Platforms        []krewPlatform `json:"platforms"`
	} `json:"spec"`
}

type krewPlatform struct {
	URI      string                `json:"uri"`
	Sha256   string                `json:"sha256"`
	Selector *metav1.LabelSelector `json:"selector"`
	Bin      string                `json:"bin"`
}

// TestArchives builds the archive of one platform twice, and compares it with its entry in the manifest for krew.
func TestArchives(t *testing.T) {
	t.Parallel()
	const tag, platform = "v0.1.0", "linux-amd64"
	name := "kubectl-datacache-" + platform + ".tar.gz"
	var archives [2][]byte
	for i := range archives {
		dir := t.TempDir()
		if out, err := exec.CommandContext(t.Context(), "../../hack/plugin-archives", dir, tag, platform).CombinedOutput(); err != nil {
			t.Fatalf("hack/plugin-archives: %v\n%s", err, out)
		}
		var err error
		if archives[i], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		sums, err := os.ReadFile(filepath.Join(dir, "checksums.txt"))
		if want := fmt.Sprintf("%x  %s\n", sha256.Sum256(archives[i]), name); string(sums) != want || err != nil {
			t.Errorf("checksums.txt has %q (%v), want %q", sums, err, want)
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two builds of the archive differ")
	}
	plugin := krewManifest(t, tag, map[string]string{name: fmt.Sprintf("%x", sha256.Sum256(archives[0]))})
	files := unpack(t, archives[0])
	i := slices.IndexFunc(plugin.Spec.Platforms, func(p krewPlatform) bool { return strings.HasSuffix(p.URI, "/"+name) })
	if i < 0 || files[plugin.Spec.Platforms[i].Bin] == "" || !strings.Contains(files["LICENSE"], "Apache License") {
		t.Fatalf("the manifest has no entry for %s, or the archive lacks its program or LICENSE", name)
	}
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte(files[plugin.Spec.Platforms[i].Bin]), 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), program, "--version").CombinedOutput(); err != nil || !strings.Contains(string(out), tag) {
		t.Errorf("the program's version is %q (%v), want %s", out, err, tag)
	}
}

// krewManifest returns .krew.yaml, filled in as krew-release-bot does, with the checksums of archives by name.
func krewManifest(t *testing.T, tag string, checksums map[string]string) *krewPlugin {
	t.Helper()
	values := map[string]string{"TagName": tag}
	var render func(text string) (string, error)
	functions := template.FuncMap{"addURIAndSha": func(uri, _ string) (string, error) {
		uri, err := render(uri)
		sum := checksums[uri[strings.LastIndex(uri, "/")+1:]]
		if sum == "" {
			sum = strings.Repeat("0", 64) // of an archive that is not built here
		}
		return fmt.Sprintf("uri: %s\n    sha256: %s", uri, sum), err
	}}
	render = func(text string) (string, error) {
		parsed, err := template.New("krew").Funcs(functions).Parse(text)
		if err != nil {
			return "", err
		}
		var out strings.Builder
		err = parsed.Execute(&out, values)
		return out.String(), err
	}
	text, err := os.ReadFile("../../.krew.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rendered, err := render(string(text))
	if err != nil {
		t.Fatal(err)
	}
	plugin := &krewPlugin{}
	if err := yaml.UnmarshalStrict([]byte(rendered), plugin); err != nil {
		t.Fatal(err)
	}
	return plugin
}

// TestKrewManifest checks what krew's index demands of a plugin, and that the manifest has the Makefile's platforms.
func TestKrewManifest(t *testing.T) {
	t.Parallel()
	plugin := krewManifest(t, "v0.1.0", nil)
	spec := &plugin.Spec
	if plugin.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || plugin.Kind != "Plugin" || plugin.Metadata.Name != "datacache" || spec.Version != "v0.1.0" {
		t.Errorf("it is %s %s of %s %s", plugin.APIVersion, plugin.Kind, plugin.Metadata.Name, spec.Version)
	}
	if n := len(spec.ShortDescription); n == 0 || n > 50 || strings.HasSuffix(spec.ShortDescription, ".") || spec.Description == "" || spec.Homepage == "" {
		t.Errorf("it is described as %q, want at most 50 characters without a full stop", spec.ShortDescription)
	}
	var has []string
	for _, p := range spec.Platforms {
		system, arch := p.Selector.MatchLabels["os"], p.Selector.MatchLabels["arch"]
		has = append(has, system+"-"+arch)
		program := "kubectl-datacache"
		if system == "windows" {
			program += ".exe"
		}
		if want := "https://github.com/kubeflow/datacache/releases/download/v0.1.0/kubectl-datacache-" + system + "-" + arch + ".tar.gz"; p.URI != want || p.Bin != program {
			t.Errorf("the platform %s-%s has %s at %s, want %s at %s", system, arch, p.Bin, p.URI, program, want)
		}
	}
	makefile, err := os.ReadFile("../../hack/make/release.mk")
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(`(?m)^export PLUGIN_PLATFORMS +\?= (.*)$`).FindStringSubmatch(string(makefile))
	if match == nil || match[1] != strings.Join(has, " ") {
		t.Errorf("the manifest has the platforms %q, the Makefile %q", has, match)
	}
}

// unpack returns the contents of the files in a .tar.gz, by name.
func unpack(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	plain, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	reader := tar.NewReader(plain)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(content)
	}
}
