// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

// What Helm calls the parts of a chart in a registry (https://helm.sh/docs/topics/registries).
const (
	chartConfig  types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	chartContent types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// artifact is a manifest with one blob.
type artifact struct {
	v1.Manifest
	blobs []v1.Layer
}

func (a artifact) MediaType() (types.MediaType, error) { return a.Manifest.MediaType, nil } //nolint:unparam // remote.Put wants it so
func (a artifact) RawManifest() ([]byte, error)        { return json.Marshal(a.Manifest) }

// newArtifact returns an artifact whose blob has a title, the name under which clients save it.
func newArtifact(config, blob v1.Layer, title string, created time.Time) (artifact, error) {
	made := artifact{
		Manifest: v1.Manifest{
			SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
			Annotations: map[string]string{"org.opencontainers.image.created": created.Format(time.RFC3339)},
		},
		blobs: []v1.Layer{config, blob},
	}
	for at, part := range made.blobs {
		digest, err := part.Digest()
		if err != nil {
			return artifact{}, err
		}
		size, err := part.Size()
		if err != nil {
			return artifact{}, err
		}
		mediaType, err := part.MediaType()
		if err != nil {
			return artifact{}, err
		}
		descriptor := v1.Descriptor{MediaType: mediaType, Digest: digest, Size: size}
		if at == 0 {
			made.Config = descriptor
			continue
		}
		descriptor.Annotations = map[string]string{"org.opencontainers.image.title": title}
		made.Layers = []v1.Descriptor{descriptor}
	}
	return made, nil
}

// push pushes the artifact by its digest and prints its reference.
func (a artifact) push(ctx context.Context, to name.Repository) error {
	for _, blob := range a.blobs {
		if err := remote.WriteLayer(to, blob, access(ctx)...); err != nil {
			return fmt.Errorf("push to %s: %w", to, err)
		}
	}
	content, err := a.RawManifest()
	if err != nil {
		return err
	}
	digest, _, err := v1.SHA256(bytes.NewReader(content))
	if err != nil {
		return err
	}
	reference := to.Digest(digest.String())
	if err := remote.Put(reference, a, access(ctx)...); err != nil {
		return fmt.Errorf("push %s: %w", reference, err)
	}
	fmt.Fprintln(os.Stdout, reference)
	return nil
}

func chartCommand(ctx context.Context, flags *flag.FlagSet, args []string) error {
	var created seconds
	flags.Var(&created, "time", "when the chart is said to be made, in seconds since 1970")
	args, err := parse(flags, args, "CHART.tgz", "REPOSITORY")
	if err != nil {
		return err
	}
	content, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	metadata, err := chartMetadata(content)
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	repository, err := name.NewRepository(args[1])
	if err != nil {
		return err
	}
	chart, err := newArtifact(static.NewLayer(metadata, chartConfig), static.NewLayer(content, chartContent), filepath.Base(args[0]), created.Time)
	if err != nil {
		return err
	}
	return chart.push(ctx, repository)
}

// chartMetadata returns Chart.yaml of a packaged chart as JSON, which is a chart's config in a registry.
func chartMetadata(content []byte) ([]byte, error) {
	plain, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	for entries := tar.NewReader(plain); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("no Chart.yaml: package a chart")
		}
		if err != nil {
			return nil, err
		}
		if path.Base(header.Name) != "Chart.yaml" {
			continue
		}
		text, err := io.ReadAll(entries)
		if err != nil {
			return nil, err
		}
		return yaml.YAMLToJSON(text)
	}
}

func attachCommand(ctx context.Context, flags *flag.FlagSet, args []string) error {
	var created seconds
	var mediaType string
	flags.StringVar(&mediaType, "type", "", "the media type of the file: application/spdx+json")
	flags.Var(&created, "time", "when the file is said to be made, in seconds since 1970")
	args, err := parse(flags, args, "FILE", "REFERENCE")
	if err != nil {
		return err
	}
	if mediaType == "" {
		return fmt.Errorf("-type is empty: say what the file is, application/spdx+json")
	}
	content, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	subject, err := name.NewDigest(args[1])
	if err != nil {
		return err
	}
	descriptor, err := remote.Head(subject, access(ctx)...)
	if err != nil {
		return fmt.Errorf("read %s: %w", subject, err)
	}
	// Registries of OCI 1.1 tell referrers by artifactType; the list that clients keep for other registries tells them by the config's type.
	file, err := newArtifact(static.NewLayer([]byte("{}"), types.MediaType(mediaType)), static.NewLayer(content, types.MediaType(mediaType)),
		filepath.Base(args[0]), created.Time)
	if err != nil {
		return err
	}
	file.ArtifactType = mediaType
	file.Subject = &v1.Descriptor{MediaType: descriptor.MediaType, Digest: descriptor.Digest, Size: descriptor.Size}
	return file.push(ctx, subject.Context())
}
