// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// Write stores data as the object or file of a URI, in one request, and replaces what is there. Readers see all of it or nothing. An object may have as
// much as its store takes in one request, some GiB.
func (s *Store) Write(ctx context.Context, uri string, data []byte) error {
	err := s.write(ctx, uri, data)
	if err == nil {
		return nil
	}
	text := strings.TrimPrefix(err.Error(), "read "+uri+": ")
	if errors.Is(err, os.ErrPermission) {
		text += "; writing takes the right to put objects too"
	}
	return writeError{fmt.Sprintf("write %s: %s", uri, text), err}
}

// writeError is the error of a write, whose text says so.
type writeError struct {
	text string
	error
}

func (e writeError) Error() string { return e.text }
func (e writeError) Unwrap() error { return e.error }

func (s *Store) write(ctx context.Context, uri string, data []byte) error {
	loc, err := parse(uri)
	if err != nil {
		return err
	}
	if loc.scheme == schemeFile {
		return writeLocal(loc.key, data)
	}
	b, err := s.bucket(ctx, loc)
	if err != nil {
		return s.failed(uri, 0, 0, err)
	}
	to, ok := b.(writer)
	if !ok {
		return fmt.Errorf("%s is only read: %w", loc.scheme, errors.ErrUnsupported)
	}
	return s.retry(ctx, uri, func(ctx context.Context) error {
		return s.Attempt(ctx, func(ctx context.Context, alive func(n int)) error {
			return to.put(ctx, loc.key, &body{Reader: bytes.NewReader(data), alive: alive})
		})
	})
}

// writer is a bucket to which objects can be written. put makes one attempt.
type writer interface {
	put(ctx context.Context, key string, data *body) error
}

// body is the body of a request, which says whenever some of it was sent.
type body struct {
	*bytes.Reader
	alive func(n int)
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.alive(n)
	return n, err
}

func writeLocal(path string, data []byte) error {
	folder := filepath.Dir(path)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(folder, ".writing-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

func (b *s3Bucket) put(ctx context.Context, key string, data *body) error {
	_, err := redirected(b, func() (*s3.PutObjectOutput, error) {
		if _, err := data.Seek(0, 0); err != nil {
			return nil, err
		}
		out, err := b.client.api.PutObject(ctx, &s3.PutObjectInput{Bucket: &b.name, Key: &key, Body: data}, func(o *s3.Options) {
			o.Region = b.currentRegion()
			o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired // not all stores know the others
		})
		if err != nil {
			return nil, s3Error(err)
		}
		return out, nil
	})
	return err
}

func (b *gcsBucket) put(ctx context.Context, key string, data *body) error {
	resp, err := b.request(ctx, http.MethodPut, b.base+escapeKey(key), data, func(http.Header) {})
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func (b *azureBucket) put(ctx context.Context, key string, data *body) error {
	if _, err := b.client.NewBlockBlobClient(key).Upload(ctx, streaming.NopCloser(data), &blockblob.UploadOptions{}); err != nil {
		return azureError(err)
	}
	return nil
}
