// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// image is the specification of an image.
type image struct {
	Name   string   // including its tag
	Layers []string // tar files, lowest layer first
	Files  []string // SRC=DST, combined in one layer above those
	Config v1.Config
}

// write builds the image for this machine's architecture and writes it as a tarball, atomically.
func (i image) write(out string) error {
	tag, err := name.NewTag(i.Name)
	if err != nil {
		return fmt.Errorf("-t: %w", err)
	}
	if !strings.HasSuffix(i.Name, ":"+tag.TagStr()) { // the default tag "latest" would make a kubelet pull the image
		return fmt.Errorf("-t %s: want a tag: %s:dev", i.Name, i.Name)
	}
	built, err := i.build(runtime.GOARCH)
	if err != nil {
		return err
	}
	part := out + ".part"
	if err := tarball.WriteToFile(part, tag, built); err != nil {
		return fmt.Errorf("write %s: %w", out, err)
	}
	return os.Rename(part, out)
}

// build builds the image for a processor, by Go's name of it.
func (i image) build(arch string) (v1.Image, error) {
	var layers []v1.Layer
	for _, file := range i.Layers {
		layer, err := layerOf(func() (io.ReadCloser, error) { return os.Open(file) })
		if err != nil {
			return nil, fmt.Errorf("-layer %s: %w", file, err)
		}
		layers = append(layers, layer)
	}
	if len(i.Files) > 0 {
		content, err := archive(i.Files)
		if err != nil {
			return nil, err
		}
		layer, err := layerOf(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	built, err := mutate.AppendLayers(base, layers...)
	if err != nil {
		return nil, err
	}
	config, err := built.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", arch // without them, containerd's import ignores the image
	config.Config = i.Config
	return mutate.ConfigFile(built, config)
}

// layerOf compresses a layer lightly: images are built more often than they are pulled, and most of a layer is a program.
func layerOf(open tarball.Opener) (v1.Layer, error) {
	return tarball.LayerFromOpener(open, tarball.WithCompressionLevel(gzip.BestSpeed), tarball.WithMediaType(types.OCILayer))
}

// archive puts files, given as SRC=DST, into a tar archive with their parent folders, owned by root, without modification times. It
// has a world-writable /tmp.
func archive(files []string) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	made := map[string]bool{"tmp": true}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}); err != nil {
		return nil, err
	}
	for _, file := range files {
		from, to, ok := strings.Cut(file, "=")
		if !ok || !path.IsAbs(to) {
			return nil, fmt.Errorf("-file %s: want SRC=DST, DST from the root", file)
		}
		to = strings.TrimPrefix(path.Clean(to), "/")
		if err := addFolders(w, path.Dir(to), made); err != nil {
			return nil, err
		}
		if err := addFile(w, from, to); err != nil {
			return nil, fmt.Errorf("-file %s: %w", file, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// addFolders adds a folder and those of its parents that have not been added.
func addFolders(w *tar.Writer, folder string, made map[string]bool) error {
	if folder == "." || made[folder] {
		return nil
	}
	if err := addFolders(w, path.Dir(folder), made); err != nil {
		return err
	}
	made[folder] = true
	return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: folder + "/", Mode: 0o755})
}

func addFile(w *tar.Writer, from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	mode := int64(0o644)
	if info.Mode()&0o100 != 0 {
		mode = 0o755
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: to, Mode: mode, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err = w.Write(content)
	return err
}
