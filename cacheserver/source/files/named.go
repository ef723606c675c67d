// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source/scan"
)

// ListQuery at the end of a URI says that it names a text with the URI of one data file on each line, in the order of their rows. Whoever
// writes a list says which files count: it may name files of a table of another format.
const ListQuery = "?list=1"

// longestList bounds the bytes of a list.
const longestList = 128 << 20

// listedURI matches what a list may name. The signed URLs of HTTP servers expire before a node that restarts needs them.
var listedURI = regexp.MustCompile(`^(/|(s3|s3a|s3n|gs|abfs|abfss|wasb|wasbs|file)://.)`)

// readList returns the files that a list names.
func (s *Source) readList(ctx context.Context, uri string) (*listing, error) {
	text, err := s.Store.ReadAtMost(ctx, uri, longestList)
	if errors.Is(err, objstore.ErrTooLong) {
		err = fmt.Errorf("%w: name folders instead", err)
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", uri, err)
	}
	found := &listing{roots: []string{""}}
	if found.files, err = parseList(string(text)); err != nil {
		return nil, fmt.Errorf("list %s: %w", uri, err)
	}
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(scan.FooterReaders)
	for i := range found.files {
		work.Go(func() error { return found.files[i].describe(ctx, s.Store) })
	}
	if err := work.Wait(); err != nil {
		return nil, fmt.Errorf("list %s: %w", uri, err)
	}
	return found, nil
}

// parseList returns the files that the text of a list names.
func parseList(text string) (files []file, err error) {
	number, seen := 0, map[string]bool{}
	for line := range strings.Lines(text) {
		number++
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if !listedURI.MatchString(line) {
			return nil, fmt.Errorf("line %d is %q: want the URI of a file, such as s3://bucket/part-0.parquet, or an absolute path", number, line)
		}
		if seen[line] {
			return nil, fmt.Errorf("line %d: file %s is named twice, which would double its rows: name it once", number, line)
		}
		seen[line] = true
		if files = append(files, file{objstore.Entry{URI: line, Path: strings.TrimPrefix(line, "/")}}); len(files) > mostFiles {
			return nil, fmt.Errorf("it has more than %d files: at most that many are read: write fewer, larger ones", mostFiles)
		}
	}
	if len(files) == 0 {
		return nil, errors.New("it names no file: write the URI of a file on each line")
	}
	return files, nil
}

// describe sets the size and the version of a file.
func (f *file) describe(ctx context.Context, store *objstore.Store) (err error) {
	opened, err := store.Open(ctx, f.URI)
	if err != nil {
		return err
	}
	f.Size, f.Version = opened.Size(), opened.Version()
	return opened.Close()
}
