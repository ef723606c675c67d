// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// index builds the image for each platform, given as OS/ARCH. In the source of a file, {arch} is replaced by the platform's processor.
func (i image) index(platforms []string, created time.Time) (v1.ImageIndex, error) {
	if len(platforms) == 0 {
		return nil, fmt.Errorf("-platform is empty: name at least one, linux/amd64")
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, platform := range platforms {
		system, arch, ok := strings.Cut(platform, "/")
		if !ok || system != "linux" || arch == "" {
			return nil, fmt.Errorf("-platform %s: want linux/ARCH", platform)
		}
		one := i
		one.Files = slices.Clone(i.Files)
		for at := range one.Files {
			one.Files[at] = strings.ReplaceAll(one.Files[at], "{arch}", arch)
		}
		built, err := one.build(arch)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", platform, err)
		}
		if built, err = mutate.CreatedAt(built, v1.Time{Time: created}); err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: built, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: system, Architecture: arch}},
		})
	}
	if len(i.Config.Labels) == 0 {
		return index, nil
	}
	annotated, ok := mutate.Annotations(index, i.Config.Labels).(v1.ImageIndex)
	if !ok {
		return nil, fmt.Errorf("annotations made an index into something else")
	}
	return annotated, nil
}

// writeLayout writes the index as the only entry of an OCI image layout, in a new folder, and prints its digest.
func writeLayout(index v1.ImageIndex, dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	folder, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := folder.AppendIndex(index); err != nil {
		return fmt.Errorf("write %s: %w", dir, err)
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, digest)
	return nil
}

// readLayout returns the only index of a layout.
func readLayout(dir string) (v1.ImageIndex, error) {
	folder, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", dir, err)
	}
	entries, err := folder.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(entries.Manifests) != 1 {
		return nil, fmt.Errorf("%s has %d entries, want one index: make it with 'images index'", dir, len(entries.Manifests))
	}
	return folder.ImageIndex(entries.Manifests[0].Digest)
}

// access returns the options of every request to a registry: credentials are those of docker login.
func access(ctx context.Context) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
}

func pushCommand(ctx context.Context, flags *flag.FlagSet, args []string) error {
	args, err := parse(flags, args, "DIR", "REPOSITORY")
	if err != nil {
		return err
	}
	index, err := readLayout(args[0])
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	repository, err := name.NewRepository(args[1])
	if err != nil {
		return err
	}
	to := repository.Digest(digest.String())
	if err := remote.WriteIndex(to, index, access(ctx)...); err != nil {
		return fmt.Errorf("push %s: %w", to, err)
	}
	fmt.Fprintln(os.Stdout, to)
	return nil
}

func tagCommand(ctx context.Context, flags *flag.FlagSet, args []string) error {
	args, err := parse(flags, args, "REFERENCE", "TAG...")
	if err != nil {
		return err
	}
	from, err := name.ParseReference(args[0])
	if err != nil {
		return err
	}
	descriptor, err := remote.Get(from, access(ctx)...)
	if err != nil {
		return fmt.Errorf("read %s: %w", from, err)
	}
	for _, tag := range args[1:] {
		to := from.Context().Tag(tag)
		if err := remote.Tag(to, descriptor, access(ctx)...); err != nil {
			return fmt.Errorf("tag %s: %w", to, err)
		}
	}
	return nil
}
