// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	ice "github.com/apache/iceberg-go"
	iceio "github.com/apache/iceberg-go/io"
	"github.com/klauspost/compress/zstd"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
)

// fileIO implements iceberg-go's IO interface over the object store: it reads metadata files, manifest lists, manifests and deletion
// vectors.
type fileIO struct {
	ctx   context.Context // for all reads, since the methods of iceio.IO have no context parameter
	store *objstore.Store
	// manifests maps URIs to the snapshot's manifests. A manifest is decoded before iceberg-go gets it: iceberg-go reads manifests in
	// its own goroutines, where a panic over a corrupt one would end the process.
	manifests map[string]ice.ManifestFile
	trusted   bool // whether totals and counts are left unchecked (Selection.TrustManifests)
}

var _ iceio.ReadFileIO = fileIO{}

func (f fileIO) Open(uri string) (iceio.File, error) {
	if m, ok := f.manifests[uri]; ok {
		return f.openManifest(m)
	}
	file, err := f.store.Open(f.ctx, uri)
	if err != nil {
		return nil, err // a nil *objstore.File must not become a non-nil iceio.File
	}
	return file, nil
}

// openList reads a manifest list, checks its bounds, and returns it as a file for iceberg-go to decode.
func (f fileIO) openList(uri string) (iceio.File, error) {
	data, err := f.store.ReadAtMost(f.ctx, uri, maxManifest)
	if err != nil {
		return nil, err
	}
	if err := checkAvro(data, maxManifest); err != nil {
		return nil, err
	}
	return memFile{Reader: bytes.NewReader(data), uri: uri}, nil
}

// listIO is an IO that opens only manifest lists.
type listIO struct{ fileIO }

func (f listIO) Open(uri string) (iceio.File, error) { return f.openList(uri) }

func (f fileIO) ReadFile(uri string) ([]byte, error) {
	return f.store.ReadAtMost(f.ctx, uri, maxMetadata)
}

func (f fileIO) Remove(uri string) error {
	return fmt.Errorf("remove %s: tables are only read: %w", uri, errors.ErrUnsupported)
}

func (f fileIO) openManifest(m ice.ManifestFile) (iceio.File, error) {
	if _, ok := m.(pruned); ok {
		return emptyManifest(m)
	}
	data, err := f.checkedManifest(m, nil)
	if err != nil {
		return nil, err
	}
	return memFile{Reader: bytes.NewReader(data), uri: m.FilePath()}, nil
}

// checkedManifest is readManifest for planning: it also checks in their footers that files without rows have none.
func (f fileIO) checkedManifest(m ice.ManifestFile, visit func(ice.ManifestEntry)) ([]byte, error) {
	data, found, err := f.readManifest(m, visit)
	if err != nil {
		return nil, fmt.Errorf("manifest %s: %w: restore it or roll the table back", m.FilePath(), err)
	}
	for _, d := range found.empty {
		if err := f.checkEmpty(d); err != nil {
			return nil, err
		}
	}
	return data, nil
}

// pruned is a manifest whose files the filter excludes.
type pruned struct{ ice.ManifestFile }

// emptyManifest returns a manifest without entries in the place of another one.
func emptyManifest(m ice.ManifestFile) (iceio.File, error) {
	var out bytes.Buffer
	w, err := ice.NewManifestWriter(m.Version(), &out, *ice.UnpartitionedSpec, ice.NewSchema(0), 0, ice.WithManifestWriterContent(m.ManifestContent()))
	if err == nil {
		err = w.Close()
	}
	if err != nil && !errors.Is(err, ice.ErrEmptyManifest) {
		return nil, fmt.Errorf("leave out manifest %s: %w", m.FilePath(), err)
	}
	return memFile{Reader: bytes.NewReader(out.Bytes()), uri: m.FilePath()}, nil
}

// readManifest reads a manifest and checks all its entries, and what the manifest list counts. It calls visit, unless it is nil, with each
// live entry; if there is an error, the caller must discard what it got.
func (f fileIO) readManifest(m ice.ManifestFile, visit func(ice.ManifestEntry)) (data []byte, found live, err error) {
	if data, err = f.store.ReadAtMost(f.ctx, m.FilePath(), maxManifest); err != nil {
		return nil, live{}, err
	}
	size := int64(len(data))
	if err := checkAvro(data, maxManifest); err != nil {
		return nil, live{}, err
	}
	if data, err = spellOut(data); err != nil {
		return nil, live{}, err
	}
	found, err = liveEntries(m, memFile{Reader: bytes.NewReader(data), uri: m.FilePath()}, visit)
	found.size = size
	if err == nil && !f.trusted {
		err = checkManifest(m, found)
	}
	return data, found, err
}

// checkEmpty checks in the footer that a file has no rows, as its manifest states: iceberg-go ignores such files, so no other code
// checks them.
func (f fileIO) checkEmpty(d ice.DataFile) error {
	file, err := f.store.Open(f.ctx, d.FilePath())
	if err != nil {
		return fmt.Errorf("%s: %w", roleOf(d), err)
	}
	defer func() { _ = file.Close() }() // opened for reading: closing can't lose data
	rows, err := parquet.FileRows(f.ctx, file)
	if err != nil {
		return err
	}
	return parquet.CheckCount(roleOf(d), d.FilePath(), rows, 0)
}

// readMetadata reads a metadata file, which may be compressed.
func readMetadata(ctx context.Context, store *objstore.Store, uri string) ([]byte, error) {
	data, err := store.ReadAtMost(ctx, uri, maxMetadata)
	if err != nil {
		return nil, err
	}
	if data, err = expandMetadata(uri, data); err != nil {
		return nil, err
	}
	return data, checkNesting(data)
}

func expandMetadata(uri string, data []byte) (_ []byte, err error) {
	var text io.Reader
	switch {
	case strings.HasSuffix(uri, ".gz.metadata.json"), strings.HasSuffix(uri, ".metadata.json.gz"):
		text, err = gzip.NewReader(bytes.NewReader(data))
	case strings.HasSuffix(uri, ".zstd.metadata.json"), strings.HasSuffix(uri, ".metadata.json.zstd"):
		var z *zstd.Decoder
		if z, err = zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxMetadata)); err == nil {
			defer z.Close()
		}
		text = z
	default:
		return data, nil
	}
	if err != nil {
		return nil, err
	}
	return expand(text, maxMetadata)
}

// io returns the IO that iceberg-go uses for one operation.
func (t *Table) io(ctx context.Context) (iceio.IO, error) {
	f := fileIO{ctx: ctx, store: t.Store, trusted: t.trusted}
	if m := t.manifests.Load(); m != nil {
		f.manifests = *m
	}
	return f, nil
}

// InMemory returns an IO that has only one file, with this content.
func InMemory(uri string, data []byte) iceio.IO {
	return memFile{Reader: bytes.NewReader(data), uri: uri}
}

// memFile is a file in memory. It is its own fs.FileInfo, and an IO that contains only this file.
type memFile struct {
	*bytes.Reader
	uri string
}

func (f memFile) Open(string) (iceio.File, error) { return f, nil }
func (f memFile) Remove(string) error             { return errors.ErrUnsupported }
func (f memFile) Close() error                    { return nil }
func (f memFile) Stat() (fs.FileInfo, error)      { return f, nil }
func (f memFile) Name() string                    { return f.uri }
func (f memFile) Size() int64                     { return f.Reader.Size() }
func (f memFile) Mode() fs.FileMode               { return 0o444 }
func (f memFile) ModTime() time.Time              { return time.Time{} }
func (f memFile) IsDir() bool                     { return false }
func (f memFile) Sys() any                        { return nil }
