// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// sample returns an image with one program and one text, whose files have the current modification time.
func sample(t *testing.T) image {
	t.Helper()
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"program": 0o700, "text": 0o600} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	return image{
		Name:   "datacache/sample:dev",
		Files:  []string{filepath.Join(dir, "program") + "=/program", filepath.Join(dir, "text") + "=/etc/sample/text"},
		Config: v1.Config{Entrypoint: []string{"/program"}, User: "65532:65532", WorkingDir: "/"},
	}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "sample.tar")
	if err := sample(t).write(out); err != nil {
		t.Fatal(err)
	}
	built, err := tarball.ImageFromPath(out, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := built.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Architecture != runtime.GOARCH || config.Config.User != "65532:65532" || config.Config.Entrypoint[0] != "/program" {
		t.Errorf("the image is for %s/%s, runs %q as %q", config.OS, config.Architecture, config.Config.Entrypoint, config.Config.User)
	}
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(out) })
	if err != nil {
		t.Fatal(err)
	}
	if tags := manifest[0].RepoTags; len(tags) != 1 || tags[0] != "datacache/sample:dev" {
		t.Errorf("its names are %q, want datacache/sample:dev", tags)
	}
	layers, err := built.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("it has %d layers: %v", len(layers), err)
	}
	want := map[string]int64{"tmp/": 0o1777, "program": 0o755, "etc/": 0o755, "etc/sample/": 0o755, "etc/sample/text": 0o644}
	for _, header := range headers(t, layers[0]) {
		if mode, ok := want[header.Name]; !ok || header.Mode != mode || header.Uid != 0 || !header.ModTime.Equal(time.Unix(0, 0)) {
			t.Errorf("%s has mode %o, owner %d, time %v; want %o, 0, 1970", header.Name, header.Mode, header.Uid, header.ModTime, mode)
		}
		delete(want, header.Name)
	}
	if len(want) > 0 {
		t.Errorf("the layer lacks %v", want)
	}
}

func headers(t *testing.T, layer v1.Layer) []*tar.Header {
	t.Helper()
	content, err := layer.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = content.Close() }()
	var all []*tar.Header
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, header)
	}
}

func TestSameInputsSameBytes(t *testing.T) {
	t.Parallel()
	var first []byte
	for range 2 {
		out := filepath.Join(t.TempDir(), "sample.tar")
		if err := sample(t).write(out); err != nil { // from files in another folder, with another modification time
			t.Fatal(err)
		}
		content, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		if first != nil && !bytes.Equal(first, content) {
			t.Error("the same inputs gave other bytes")
		}
		first = content
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(*image)
		want  string
	}{
		"no tag":             {func(i *image) { i.Name = "datacache/sample" }, "want a tag"},
		"no name":            {func(i *image) { i.Name = "" }, "-t"},
		"no such layer":      {func(i *image) { i.Layers = []string{"nowhere.tar"} }, "-layer nowhere.tar"},
		"no such file":       {func(i *image) { i.Files = []string{"nowhere=/x"} }, "-file nowhere=/x"},
		"a relative place":   {func(i *image) { i.Files = []string{"nowhere=x"} }, "DST from the root"},
		"a file but nowhere": {func(i *image) { i.Files = []string{"nowhere"} }, "want SRC=DST"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i, out := sample(t), filepath.Join(t.TempDir(), "sample.tar")
			c.spoil(&i)
			if err := i.write(out); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one that says %q", err, c.want)
			}
			if _, err := os.Stat(out); err == nil {
				t.Error("there is a tarball all the same")
			}
		})
	}
}
