// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/kubeflow/datacache/cacheserver/objstore"
)

// metadataFile is the location of a metadata file and the store that can read the table.
type metadataFile struct {
	metadata string
	store    *objstore.Store
}

var metadataName = regexp.MustCompile(`\.metadata\.json(\.gz|\.zstd)?$`)

// locate finds the table's metadata file.
func locate(ctx context.Context, store *objstore.Store, src Location) (metadataFile, error) {
	if src.CatalogURI != "" {
		return fromCatalog(ctx, store, src)
	}
	if strings.HasSuffix(src.Metadata, ".json") || metadataName.MatchString(src.Metadata) {
		return metadataFile{metadata: src.Metadata, store: store}, nil
	}
	file, err := fromHint(ctx, store, src.Metadata)
	if err != nil {
		return metadataFile{}, err
	}
	return metadataFile{metadata: file, store: store}, nil
}

// fromHint resolves a table's directory, or its metadata directory, through the version-hint.text of Hadoop tables.
func fromHint(ctx context.Context, store *objstore.Store, dir string) (string, error) {
	dir = strings.TrimRight(dir, "/")
	if path.Base(dir) != "metadata" {
		dir += "/metadata"
	}
	hint := dir + "/version-hint.text"
	text, err := store.ReadAtMost(ctx, hint, 1<<10)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("it is no metadata file and there is no %s: name the file %s/NNNNN-<uuid>.metadata.json", hint, dir)
	}
	if err != nil {
		return "", fmt.Errorf("read the version hint: %w", err)
	}
	version, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 63)
	if err != nil {
		return "", fmt.Errorf("%s holds %.40q, not a version number: name the file %s/NNNNN-<uuid>.metadata.json", hint, text, dir)
	}
	return fmt.Sprintf("%s/v%d.metadata.json", dir, version), nil
}
