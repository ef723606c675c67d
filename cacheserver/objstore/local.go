// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// openLocal opens a file by its literal path, or else by its decoded one.
func (s *Store) openLocal(ctx context.Context, uri string, loc location) (*File, error) {
	if ctx.Err() != nil {
		return nil, canceled(ctx, uri)
	}
	path := loc.key
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) && loc.decoded != "" {
		if decoded, err2 := os.Stat(loc.decoded); err2 == nil {
			path, st, err = loc.decoded, decoded, nil
		}
	}
	// A pipe or a device is rejected before it is opened, since opening it may block.
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file (%s)", path, st.Mode().Type())
	}
	if err != nil {
		return nil, s.failed(uri, 1, 0, err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, s.failed(uri, 1, 0, err)
	}
	return &File{ctx: ctx, uri: uri, size: st.Size(), modified: st.ModTime(), local: f, stats: s.stats}, nil
}

// pread fills p from a local file. It is an error if the file has become shorter since it was opened.
func (f *File) pread(p []byte, off int64) (int, error) {
	if f.ctx.Err() != nil {
		return 0, canceled(f.ctx, f.uri)
	}
	start := time.Now()
	n, err := f.local.ReadAt(p, off)
	f.stats.requests.Add(1)
	f.stats.bytes.Add(int64(n))
	f.stats.waited.Add(int64(time.Since(start)))
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: it had %d bytes when it was opened and ends at %d now", ErrChanged, f.size, off+int64(n))
	}
	if err != nil {
		f.stats.failures.Add(1)
		return n, fmt.Errorf("read %s: %w", f.uri, err)
	}
	return n, nil
}
