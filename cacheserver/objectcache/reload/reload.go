// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package reload keeps a value that was read from a file in step with the file.
package reload

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"
)

// File is a value parsed from a file. Make it with Open; it may be shared.
type File[T any] struct {
	path     string
	parse    func(text []byte) (T, error)
	read     []byte // what the file held when it was last looked at, good or bad; Watch's own
	current  atomic.Pointer[T]
	rejected atomic.Bool
}

// Open reads the file once. A file that can't be read or parsed is an error now; later it is not, see Watch.
func Open[T any](path string, parse func(text []byte) (T, error)) (*File[T], error) {
	f := &File[T]{path: path, parse: parse}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	value, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f.read = text
	f.current.Store(&value)
	return f, nil
}

// Get returns the last good value.
func (f *File[T]) Get() T { return *f.current.Load() }

// Rejected says that the file holds something other than Get returns, because that could not be used.
func (f *File[T]) Rejected() bool { return f.rejected.Load() }

// Watch looks at the file again and again until ctx ends, and calls changed with each new value. A file that is bad or gone
// is logged, once per content, and the last good value stays. It polls: a ConfigMap's file is a chain of symbolic links
// that are swapped, and a look costs one read of a small file. One goroutine watches a File.
func (f *File[T]) Watch(ctx context.Context, every time.Duration, log *slog.Logger, changed func(T)) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			f.look(log, changed)
		}
	}
}

func (f *File[T]) look(log *slog.Logger, changed func(T)) {
	text, err := os.ReadFile(f.path)
	if err != nil {
		f.reject(log, nil, err)
		return
	}
	if bytes.Equal(text, f.read) {
		return
	}
	value, err := f.parse(text)
	if err != nil {
		f.reject(log, text, err)
		return
	}
	f.read = text
	f.rejected.Store(false)
	f.current.Store(&value)
	log.Info("file loaded again", "file", f.path)
	changed(value)
}

// reject remembers and says that the file's text is not what is in force; nil stands for a file that can't be read.
func (f *File[T]) reject(log *slog.Logger, text []byte, err error) {
	if f.rejected.Swap(true) && bytes.Equal(text, f.read) {
		return
	}
	f.read = text
	log.Error("file is bad: what it said before stays in force", "file", f.path, "error", err)
}
