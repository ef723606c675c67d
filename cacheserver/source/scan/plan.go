// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
)

// FooterReaders is the number of footers that Plan reads concurrently, unless Table.Readers says otherwise.
const FooterReaders = 16

// Plan returns the splits of n data files in order: by file, then by row group. Row groups that the footer's statistics exclude are
// omitted. It reads the footer of every file and calls progress, if it is not nil, after each; calls are never concurrent.
func (t *Table) Plan(ctx context.Context, n int, file func(i int) *File, progress func(done, total int)) ([]source.Split, error) {
	if progress == nil {
		progress = func(int, int) {}
	}
	var mu sync.Mutex
	done := 0
	perFile := make([][]source.Split, n)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(cmp.Or(t.Readers, FooterReaders))
	for i := range n {
		group.Go(func() error {
			splits, err := t.splits(ctx, file(i))
			if err != nil {
				return err
			}
			perFile[i] = splits
			mu.Lock()
			defer mu.Unlock()
			done++
			progress(done, n)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	return slices.Concat(perFile...), nil
}

// splits returns the splits of one data file.
func (t *Table) splits(ctx context.Context, file *File) (_ []source.Split, err error) {
	of := file.Split
	defer parquet.RecoverFileError(of.File, &err)
	f, err := t.Footer(ctx, of.File, of.FileSize)
	if err != nil {
		return nil, err
	}
	if file.Rows >= 0 {
		if err := parquet.CheckCount("data file", f.URI, f.Total(), file.Rows); err != nil {
			return nil, err
		}
	}
	columns, err := file.Columns(f)
	if err != nil {
		return nil, err
	}
	var splits []source.Split
	for g := range f.Groups() {
		if f.Rows(g) == 0 || !t.Filter.MightMatch(t.bounds(file, f, g)) {
			continue
		}
		if err := columns.Projection.Check(g); err != nil {
			return nil, err
		}
		s := of
		s.File, s.FileSize, s.Version, s.RowGroup, s.Rows, s.Bytes = f.URI, f.Size, f.Version, g, f.Rows(g), columns.Projection.Weight(g, len(t.Fields))
		s.Start, s.Length = f.Extent(g)
		splits = append(splits, s)
	}
	return splits, nil
}
