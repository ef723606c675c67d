// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"context"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
)

const (
	// FooterReaders is the number of footers that Plan reads concurrently, as far as footerMemory allows and the Store has as many requests
	// at a time.
	FooterReaders = 512
	// footerMemory bounds the memory for reading and parsing footers.
	footerMemory = 64 << 20

	leastTail, mostTail = 8 << 10, 1 << 20

	// countReaders is the number of files whose deletes are read at a time to count them: each takes a bit for each row of the file.
	countReaders = 8
)

// tail is the number of bytes at the end of a file that are read for its footer: somewhat more than the longest footer so far, or the Store's
// default. A longer footer takes another request.
func (t *Table) tail() int64 {
	longest := t.longest.Load()
	if longest == 0 {
		return 0
	}
	return min(max(longest+longest/4, leastTail), mostTail)
}

// footerCost is about the memory for reading and parsing a footer.
func (t *Table) footerCost() int64 {
	const parsed = 8 // times the length
	return min(t.tail()+t.longest.Load()*parsed, footerMemory)
}

// sawFooter records the length of a footer.
func (t *Table) sawFooter(length int64) {
	for longest := t.longest.Load(); length > longest && !t.longest.CompareAndSwap(longest, length); {
		longest = t.longest.Load()
	}
}

// Files are data files to plan.
type Files struct {
	N  int
	At func(i int) *File
	// Version identifies the dataset for other processes, which open it to plan some of the files. Nil: this process plans all of them.
	Version *source.Version
}

// Plan returns the splits of data files in order: by file, then by row group. Row groups that the footer's statistics exclude are omitted. It
// reads the footer of every file, and counts the rows that are deleted by their positions. Other processes may read some, if there are many; if one of them fails, the files are planned here.
func (t *Table) Plan(ctx context.Context, files Files, by *source.Planning) ([]source.Split, error) {
	p := newPlanner(t, files, by)
	if err := p.plan(ctx); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	splits := slices.Concat(p.splits...)
	if by != nil && by.Cut != nil {
		splits = by.Cut(splits)
	}
	if err := t.countParts(ctx, splits); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	return splits, nil
}

// countParts counts the deleted rows of splits that were cut.
func (t *Table) countParts(ctx context.Context, splits []source.Split) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(countReaders)
	for i := range splits {
		if s := &splits[i]; s.Exact && s.Deleted < 0 {
			group.Go(func() error { return t.countPart(ctx, s) })
		}
	}
	return group.Wait()
}

func (t *Table) countPart(ctx context.Context, s *source.Split) (err error) {
	defer parquet.RecoverFileError(s.File, &err)
	file, err := t.File(ctx, *s)
	if err != nil {
		return err
	}
	f, err := t.Footer(ctx, s.File, s.FileSize)
	if err != nil {
		return err
	}
	columns, err := file.Columns(f)
	if err != nil {
		return err
	}
	s.Deleted, err = t.deleted(ctx, file, columns, f.FirstRow(s.RowGroup)+s.First, s.Rows)
	return err
}

// deleted counts the deleted rows among the n rows of a file from first on. Positions alone delete rows of the file.
func (t *Table) deleted(ctx context.Context, file *File, c *Columns, first, n int64) (int64, error) {
	if file.Deletes == nil {
		return 0, nil
	}
	if err := t.counting.Acquire(ctx, 1); err != nil {
		return 0, context.Cause(ctx)
	}
	defer t.counting.Release(1)
	deletes, err := file.Deletes(ctx, c)
	if err != nil || deletes.Keep == nil {
		return 0, err
	}
	return n - int64(bitutil.CountSetBits(deletes.Keep, int(first), int(n))), nil
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
		bounds := t.bounds(file, f, g)
		if f.Rows(g) == 0 || !t.Filter.MightMatch(bounds) {
			continue
		}
		if err := columns.Projection.Check(g); err != nil {
			return nil, err
		}
		s := of
		if f.Version != s.Version { // equal strings take the memory of one
			s.Version = f.Version
		}
		s.File, s.FileSize, s.RowGroup, s.Rows, s.Bytes = f.URI, f.Size, g, f.Rows(g), columns.Projection.Weight(g, len(t.Fields))
		s.Start, s.Length = f.Extent(g)
		if s.Exact = of.Exact && t.Filter.AlwaysMatches(bounds); s.Exact {
			if s.Deleted, err = t.deleted(ctx, file, columns, f.FirstRow(g), s.Rows); err != nil {
				return nil, err
			}
		}
		splits = append(splits, s)
	}
	return splits, nil
}
