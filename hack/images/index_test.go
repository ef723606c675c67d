// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

var commitTime = time.Unix(1_700_000_000, 0).UTC()

// forTwo returns the index of an image with another program for each processor.
func forTwo(t *testing.T) v1.ImageIndex {
	t.Helper()
	dir := t.TempDir()
	for _, arch := range []string{"amd64", "arm64"} {
		if err := os.WriteFile(filepath.Join(dir, "program-"+arch), []byte(arch), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	spec := image{Files: []string{filepath.Join(dir, "program-{arch}") + "=/program"}, Config: v1.Config{Labels: map[string]string{"revision": "abc"}}}
	index, err := spec.index([]string{"linux/amd64", "linux/arm64"}, commitTime)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

func TestIndex(t *testing.T) {
	t.Parallel()
	index := forTwo(t)
	entries, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(entries.Manifests) != 2 || entries.Annotations["revision"] != "abc" {
		t.Fatalf("the index has %d entries and annotations %v, want 2 and revision abc", len(entries.Manifests), entries.Annotations)
	}
	for _, entry := range entries.Manifests {
		built, err := index.Image(entry.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := built.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		layers, err := built.Layers()
		if err != nil {
			t.Fatal(err)
		}
		if config.Architecture != entry.Platform.Architecture || !config.Created.Equal(commitTime) || !holds(t, layers[0], entry.Platform.Architecture) {
			t.Errorf("the entry for %s has an image for %s of %v, or another program", entry.Platform, config.Architecture, config.Created)
		}
	}
	again, err := forTwo(t).Digest() // from files in another folder
	if err != nil {
		t.Fatal(err)
	}
	if first, err := index.Digest(); err != nil || first != again {
		t.Errorf("the same inputs gave %s and %s: %v", first, again, err)
	}
}

func holds(t *testing.T, layer v1.Layer, text string) bool {
	t.Helper()
	content, err := layer.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = content.Close() }()
	all, err := io.ReadAll(content)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(all), text)
}

// TestAttached checks that a file that is attached is found from the index, and that attaching it again adds nothing.
func TestAttached(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	dir := t.TempDir()
	repository := strings.TrimPrefix(server.URL, "http://") + "/datacache/sample"
	index := forTwo(t)
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "sample.spdx.json")
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeLayout(index, filepath.Join(dir, "layout")); err != nil {
		t.Fatal(err)
	}
	subject := repository + "@" + digest.String()
	for range 2 {
		for _, args := range [][]string{
			{"push", filepath.Join(dir, "layout"), repository},
			{"attach", "-type", "application/spdx+json", "-time", "1700000000", file, subject},
			{"tag", subject, "v1", "latest"},
		} {
			if err := run(t.Context(), args); err != nil {
				t.Fatalf("images %q: %v", args, err)
			}
		}
	}
	reference, err := name.NewDigest(subject)
	if err != nil {
		t.Fatal(err)
	}
	found, err := remote.Referrers(reference)
	if err != nil {
		t.Fatal(err)
	}
	referrers, err := found.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(referrers.Manifests) != 1 || referrers.Manifests[0].ArtifactType != "application/spdx+json" {
		t.Errorf("%s has the referrers %+v, want one SBOM", subject, referrers.Manifests)
	}
	tagged, err := remote.Head(reference.Context().Tag("latest"))
	if err != nil || tagged.Digest != digest {
		t.Errorf("latest is %v: %v, want %s", tagged, err, digest)
	}
}

func TestCommandsRefused(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"want a command":      {"paint"},
		"want DIR REPOSITORY": {"push", "one"},
		"-platform is empty":  {"index", "-o", "somewhere"},
		"want linux/ARCH":     {"index", "-o", "somewhere", "-platform", "plan9/amd64"},
		"-o is empty":         {"roots"},
		"-type is empty":      {"attach", "file", "reference"},
		"none may be empty":   {"sbom", "-name", "sample"},
		"not a Go program":    {"sbom", "-name", "sample", "-version", "v1", "-o", "somewhere", "go.mod"},
		"seconds since 1970":  {"index", "-time", "today"},
	} {
		if err := run(t.Context(), args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("images %q: error %v, want one that says %q", args, err, want)
		}
	}
}
