// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package sink

import (
	"bytes"
	"context"
	"io"

	iceio "github.com/apache/iceberg-go/io"

	"github.com/kubeflow/datacache/cacheserver/objstore"
)

// fileIO is iceberg-go's IO over the object store: it reads manifests, and writes those of a snapshot.
type fileIO struct {
	ctx   context.Context // for all calls, since the methods of iceio.IO have no context parameter
	store *objstore.Store
}

var _ iceio.WriteFileIO = fileIO{}

// Open implements iceio.IO.
func (f fileIO) Open(uri string) (iceio.File, error) {
	file, err := f.store.Open(f.ctx, uri)
	if err != nil {
		return nil, err // a nil *objstore.File must not become a non-nil iceio.File
	}
	return file, nil
}

// Remove implements iceio.IO. It removes nothing: a file of a snapshot whose commit got no answer may be in use.
func (f fileIO) Remove(string) error { return nil }

// WriteFile implements iceio.WriteFileIO.
func (f fileIO) WriteFile(uri string, data []byte) error { return f.store.Write(f.ctx, uri, data) }

// Create implements iceio.WriteFileIO.
func (f fileIO) Create(uri string) (iceio.FileWriter, error) { return &created{to: f, uri: uri}, nil }

// created is a file that is written when it is closed.
type created struct {
	bytes.Buffer
	to  fileIO
	uri string
}

// ReadFrom implements io.ReaderFrom.
func (c *created) ReadFrom(r io.Reader) (int64, error) { return c.Buffer.ReadFrom(r) }

// Close writes the file.
func (c *created) Close() error { return c.to.WriteFile(c.uri, c.Bytes()) }
