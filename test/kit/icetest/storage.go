// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package icetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	iceio "github.com/apache/iceberg-go/io"

	"github.com/kubeflow/datacache/test/kit/s3test"
)

// storage stores a warehouse's files.
type storage interface {
	read(uri string) ([]byte, error)
	write(uri string, data []byte) error
}

// local is the file system; URIs are plain paths.
type local struct{}

func (local) read(uri string) ([]byte, error) { return os.ReadFile(uri) }

func (local) write(uri string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(uri), 0o755); err != nil {
		return err
	}
	return os.WriteFile(uri, data, 0o644)
}

// onS3 is an S3 server; URIs are s3://bucket/key.
type onS3 struct{ server *s3test.Server }

func (s onS3) read(uri string) ([]byte, error) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(uri, "s3://"), "/")
	return s.server.Get(bucket, key), nil
}

func (s onS3) write(uri string, data []byte) error {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(uri, "s3://"), "/")
	s.server.Put(bucket, key, data)
	return nil
}

// fileIO implements iceberg-go's IO interface over a storage.
type fileIO struct{ storage }

var (
	_ iceio.WriteFileIO = fileIO{}
	_ iceio.ReadFileIO  = fileIO{}
)

func (f fileIO) ReadFile(uri string) ([]byte, error)     { return f.read(uri) }
func (f fileIO) WriteFile(uri string, data []byte) error { return f.write(uri, data) }
func (f fileIO) Create(uri string) (iceio.FileWriter, error) {
	return &writer{to: f.storage, uri: uri}, nil
}

func (f fileIO) Remove(uri string) error {
	return fmt.Errorf("remove %s: %w", uri, errors.ErrUnsupported)
}

func (f fileIO) Open(uri string) (iceio.File, error) {
	data, err := f.read(uri)
	if err != nil {
		return nil, err
	}
	return file{Reader: bytes.NewReader(data), uri: uri}, nil
}

// writer stores a file when it is closed.
type writer struct {
	bytes.Buffer
	to  storage
	uri string
}

func (w *writer) Close() error { return w.to.write(w.uri, w.Bytes()) }

// file is a file in memory, and its own fs.FileInfo.
type file struct {
	*bytes.Reader
	uri string
}

var _ io.ReaderAt = file{}

func (f file) Close() error               { return nil }
func (f file) Stat() (fs.FileInfo, error) { return f, nil }
func (f file) Name() string               { return f.uri }
func (f file) Size() int64                { return f.Reader.Size() }
func (f file) Mode() fs.FileMode          { return 0o444 }
func (f file) ModTime() time.Time         { return time.Time{} }
func (f file) IsDir() bool                { return false }
func (f file) Sys() any                   { return nil }
