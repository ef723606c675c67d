// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/predicate"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
	"github.com/kubeflow/datacache/cacheserver/source/scan"
	"github.com/kubeflow/datacache/internal/tracing"
)

// dataFile is a planned data file. A table may have a million, so it has only what reading them needs.
type dataFile struct {
	path       string
	size, rows int64 // of the file, according to its manifest
	sequence   int64
	firstRowID *int64 // row id of the first row; nil if rows have none
	// partition has the values of the identity partition fields.
	partition partition
	deletes   *fileDeletes // that apply to it; nil: none
	// stated are the bounds of the filter's columns in the manifest, by field id; nil in a plan that is not for loading.
	stated map[int]predicate.Bounds
}

// fileDeletes are the delete files that apply to a data file.
type fileDeletes struct {
	position []ice.DataFile
	equality []ice.DataFile
	vectors  []ice.DataFile // deletion vectors
}

// filePlan lists the data files of the snapshot that may contain selected rows, in the order of their splits.
type filePlan struct{ files []*dataFile }

// mostCounted is the maximum number of rows of a table's positional delete files that planning counts: a head may have little memory.
const mostCounted = 4 << 20

// positions is the number of rows of all positional delete files.
func (p *filePlan) positions() (n int64) {
	seen := map[string]bool{}
	for _, d := range p.files {
		if d.deletes == nil {
			continue
		}
		for _, file := range d.deletes.position {
			if !seen[file.FilePath()] {
				seen[file.FilePath()] = true
				n += file.Count()
			}
		}
	}
	return n
}

// find returns the data file with a sequence number and a path.
func (p *filePlan) find(sequence int64, path string) (*dataFile, bool) {
	i, ok := slices.BinarySearchFunc(p.files, &dataFile{sequence: sequence, path: path}, (*dataFile).compare)
	if !ok {
		return nil, false
	}
	return p.files[i], true
}

// compare orders data files as their splits.
func (d *dataFile) compare(other *dataFile) int {
	return cmp.Or(cmp.Compare(d.sequence, other.sequence), strings.Compare(d.path, other.path))
}

// Plan returns the table's splits in order: by data sequence number, then by path, then by row group. The order depends only on the
// table's snapshot, the columns' file statistics and the filter. Row groups that the footer's statistics exclude are omitted.
//
// Plan reads the footer of every planned file, and calls progress, if it is not nil, after each; calls are never concurrent.
func (t *Table) Plan(ctx context.Context, progress func(done, total int)) ([]source.Split, error) {
	return t.planBy(ctx, source.Version{}, &source.Planning{Progress: progress})
}

// planBy is Plan with other processes, which open version v. They take no part if only manifests say what they need: values of identity
// partitions and delete files.
func (t *Table) planBy(ctx context.Context, v source.Version, by *source.Planning) ([]source.Split, error) {
	plan, err := traced(ctx, "manifests", func(ctx context.Context) (*filePlan, error) { return t.files(ctx, nil) })
	if err != nil {
		return nil, err
	}
	few := plan.positions() <= mostCounted
	files := scan.Files{N: len(plan.files), At: func(i int) *scan.File {
		d := plan.files[i]
		f := t.scanned(d)
		f.Split.Exact = f.Split.Exact && (few || d.deletes == nil || len(d.deletes.position) == 0)
		return f
	}}
	if len(t.identity) == 0 && !slices.ContainsFunc(plan.files, func(d *dataFile) bool { return d.deletes != nil }) {
		files.Version = &v
	}
	return traced(ctx, "footers", func(ctx context.Context) ([]source.Split, error) { return t.Table.Plan(ctx, files, by) })
}

// PlanFiles implements source.FilePlanner, for files without deletes of a table without identity partitions.
func (t *Table) PlanFiles(ctx context.Context, files []source.Split) ([]source.Split, error) {
	return t.Table.Plan(ctx, scan.Files{N: len(files), At: func(i int) *scan.File {
		f := files[i]
		return t.scanned(&dataFile{path: f.File, size: f.FileSize, rows: f.Rows, sequence: f.Sequence, firstRowID: f.FirstRowID})
	}}, nil)
}

// traced calls a step of planning in a span.
func traced[T any](ctx context.Context, name string, step func(context.Context) (T, error)) (T, error) {
	ctx, span := tracing.Child(ctx, name)
	result, err := step(ctx)
	tracing.End(span, err)
	return result, err
}

// files returns the data files of the snapshot; the first call reads the manifests, and keeps the bounds that they state of some fields.
func (t *Table) files(ctx context.Context, stated []column.Field) (*filePlan, error) {
	return t.plan.Get(ctx, func(ctx context.Context) (*filePlan, error) {
		found, err := findFiles(ctx, t, stated)
		if err != nil {
			return nil, fmt.Errorf("plan: read the snapshot's manifests: %w", err)
		}
		return newFilePlan(found)
	})
}

// newFilePlan sorts data files, and checks that they are supported and different.
func newFilePlan(found []foundFile) (*filePlan, error) {
	p := &filePlan{files: make([]*dataFile, len(found))}
	paths := make(map[string]bool, len(found))
	var problems []error
	for i, f := range found {
		err := f.problem
		if paths[f.path] {
			err = fmt.Errorf("the manifests list data file %s twice, which would double its rows: roll the table back to a snapshot that has it once, or delete its rows and add it again", f.path)
		}
		if err != nil && len(problems) < mostListed {
			problems = append(problems, err)
		}
		paths[f.path] = true
		p.files[i] = f.dataFile
	}
	slices.SortStableFunc(p.files, (*dataFile).compare)
	return p, errors.Join(problems...)
}

// foundFile is a data file that a manifest lists, and why it can't be read.
type foundFile struct {
	*dataFile
	problem error
}

// newDataFile returns a data file with the delete files that apply to it, and the bounds of some fields.
func newDataFile(file ice.DataFile, sequence int64, identity identityFields, deletes *fileDeletes, stated []column.Field) foundFile {
	d := &dataFile{
		path: file.FilePath(), size: file.FileSizeBytes(), rows: file.Count(), sequence: sequence, firstRowID: file.FirstRowID(),
		partition: identity.partition(file), deletes: deletes, stated: statedBounds(file, stated),
	}
	files := []ice.DataFile{file}
	if deletes != nil {
		files = slices.Concat(files, deletes.position, deletes.equality)
	}
	return foundFile{d, supported(files)}
}

// supported returns an error that names a file whose format is not supported.
func supported(files []ice.DataFile) error {
	for _, f := range files {
		if f.FileFormat() != ice.ParquetFile {
			return fmt.Errorf("file %s is %s: only Parquet is supported: rewrite the table's files as Parquet", f.FilePath(), f.FileFormat())
		}
		if len(f.KeyMetadata()) > 0 {
			return fmt.Errorf("file %s is encrypted: %w", f.FilePath(), errors.ErrUnsupported)
		}
	}
	return nil
}

// file returns the data file of a split. If no deletes, filter or partition values apply to it, the description lacks what the
// manifests say, so that a node that has only such splits need not read them.
func (t *Table) file(ctx context.Context, s source.Split) (*scan.File, error) {
	d := &dataFile{sequence: s.Sequence, firstRowID: s.FirstRowID}
	if s.Exact && s.Deleted == 0 && t.Filter == nil && len(t.identity) == 0 {
		return &scan.File{Columns: func(f *parquet.Footer) (*scan.Columns, error) { return t.columnsOf(f, d) }}, nil
	}
	plan, err := t.files(ctx, t.Compared)
	if err != nil {
		return nil, err
	}
	d, ok := plan.find(s.Sequence, s.File)
	if !ok {
		return nil, fmt.Errorf("data file %s: it is not in the plan of %s: the split is of another table, snapshot or filter", s.File, t.pin.MetadataLocation)
	}
	return t.scanned(d), nil
}

// scanned describes a planned data file.
func (t *Table) scanned(d *dataFile) *scan.File {
	f := &scan.File{
		Split: source.Split{File: d.path, FileSize: d.size, Sequence: d.sequence, FirstRowID: d.firstRowID, Exact: d.deletes == nil || len(d.deletes.equality) == 0},
		Rows:  d.rows, Stated: d.stated,
		Columns: func(f *parquet.Footer) (*scan.Columns, error) { return t.columnsOf(f, d) },
	}
	if d.deletes != nil {
		f.Deletes = func(ctx context.Context, c *scan.Columns) (scan.Deletes, error) { return t.deleted.deletes(ctx, d, c) }
	}
	return f
}
