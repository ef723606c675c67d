// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package sink

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"time"

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

// inMemory is a file in memory. It is its own fs.FileInfo, and an IO that has only this file.
type inMemory struct {
	*bytes.Reader
	uri string
}

func (m inMemory) Open(string) (iceio.File, error) { return m, nil }
func (m inMemory) Remove(string) error             { return fs.ErrInvalid }
func (m inMemory) Close() error                    { return nil }
func (m inMemory) Stat() (fs.FileInfo, error)      { return m, nil }
func (m inMemory) Name() string                    { return m.uri }
func (m inMemory) Size() int64                     { return m.Reader.Size() }
func (m inMemory) Mode() fs.FileMode               { return 0o444 }
func (m inMemory) ModTime() time.Time              { return time.Time{} }
func (m inMemory) IsDir() bool                     { return false }
func (m inMemory) Sys() any                        { return nil }
