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
	"github.com/apache/iceberg-go/table"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/predicate"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
	"github.com/kubeflow/datacache/cacheserver/source/scan"
	"github.com/kubeflow/datacache/internal/tracing"
)

// dataFile is a planned data file and the delete files that apply to it.
type dataFile struct {
	file     ice.DataFile
	sequence int64
	// firstRowID is the row id of the first row; nil if rows have none.
	firstRowID *int64
	position   []ice.DataFile // positional delete files
	equality   []ice.DataFile
	vectors    []ice.DataFile // deletion vectors
	// stated are the bounds of the filter's columns in the manifest, by field id; nil in a plan that is not for loading.
	stated map[int]predicate.Bounds
}

// clean reports whether no deletes apply.
func (d *dataFile) clean() bool {
	return len(d.position) == 0 && len(d.equality) == 0 && len(d.vectors) == 0
}

// filePlan lists the data files of the snapshot that may contain selected rows, in the order of their splits.
type filePlan struct {
	files  []*dataFile
	byName map[fileName]*dataFile
}

// fileName identifies a data file.
type fileName struct {
	path     string
	sequence int64
}

// Plan returns the table's splits in order: by data sequence number, then by path, then by row group. The order depends only on the
// table's snapshot, the columns' file statistics and the filter. Row groups that the footer's statistics exclude are omitted.
//
// Plan reads the footer of every planned file, 16 at a time, and calls progress, if it is not nil, after each; calls are never
// concurrent.
func (t *Table) Plan(ctx context.Context, progress func(done, total int)) ([]source.Split, error) {
	plan, err := traced(ctx, "manifests", func(ctx context.Context) (*filePlan, error) { return t.files(ctx, nil) })
	if err != nil {
		return nil, err
	}
	return traced(ctx, "footers", func(ctx context.Context) ([]source.Split, error) {
		return t.Table.Plan(ctx, len(plan.files), func(i int) *scan.File { return t.scanned(plan.files[i]) }, progress)
	})
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
		tasks, err := t.tasks(ctx)
		if err != nil {
			return nil, fmt.Errorf("plan: read the snapshot's manifests: %w", err)
		}
		return newFilePlan(tasks, stated)
	})
}

// tasks has iceberg-go read the snapshot's manifests and match data files with their deletes.
func (t *Table) tasks(ctx context.Context) (_ []table.FileScanTask, err error) {
	defer parquet.RecoverError(&err)
	snapshot, err := t.scan.ResolveSnapshot()
	if err != nil || snapshot == nil {
		return nil, err
	}
	files := fileIO{ctx: ctx, store: t.Store, trusted: t.trusted}
	list, err := snapshot.Manifests(listIO{files})
	if err != nil {
		return nil, fmt.Errorf("manifest list %s: %w: restore it or roll the table back", snapshot.ManifestList, err)
	}
	manifests := make(map[string]ice.ManifestFile, len(list))
	for _, m := range list {
		if c := m.ManifestContent(); c != ice.ManifestContentData && c != ice.ManifestContentDeletes {
			return nil, fmt.Errorf("manifest list %s: manifest %s: content is %d, neither data (0) nor deletes (1): restore the list or roll the table back", snapshot.ManifestList, m.FilePath(), c)
		}
		if _, again := manifests[m.FilePath()]; again {
			return nil, fmt.Errorf("manifest list %s names manifest %s twice, which would double its rows: roll the table back to a snapshot with a good list, or rewrite its manifests", snapshot.ManifestList, m.FilePath())
		}
		manifests[m.FilePath()] = m
	}
	if err := t.checkTotals(files, snapshot, list); err != nil {
		return nil, err
	}
	if err := files.checkSkipped(list); err != nil {
		return nil, err
	}
	prune, err := t.newPruner()
	if err != nil {
		return nil, fmt.Errorf("project the filter on the partitions: %w", err)
	}
	for uri, m := range manifests {
		if !prune.manifest(m) {
			manifests[uri] = pruned{m}
		}
	}
	t.manifests.Store(&manifests)
	tasks, err := t.scan.PlanFiles(ctx)
	return slices.DeleteFunc(tasks, func(task table.FileScanTask) bool {
		return task.Start != 0 || !prune.file(task.File) // iceberg-go cuts long files, which are in the plan once
	}), err
}

func newFilePlan(tasks []table.FileScanTask, stated []column.Field) (*filePlan, error) {
	p := &filePlan{byName: map[fileName]*dataFile{}}
	paths := make(map[string]bool, len(tasks))
	var problems []error
	for _, task := range tasks {
		d := newDataFile(task)
		d.stated = statedBounds(task.File, stated)
		err := d.supported()
		if paths[d.file.FilePath()] {
			err = fmt.Errorf("the manifests list data file %s twice, which would double its rows: roll the table back to a snapshot that has it once, or delete its rows and add it again", d.file.FilePath())
		}
		if err != nil && len(problems) < mostListed {
			problems = append(problems, err)
		}
		paths[d.file.FilePath()] = true
		p.files = append(p.files, d)
		p.byName[fileName{d.file.FilePath(), d.sequence}] = d
	}
	slices.SortStableFunc(p.files, func(a, b *dataFile) int {
		return cmp.Or(cmp.Compare(a.sequence, b.sequence), strings.Compare(a.file.FilePath(), b.file.FilePath()))
	})
	return p, errors.Join(problems...)
}

func newDataFile(task table.FileScanTask) *dataFile {
	d := &dataFile{
		firstRowID: task.FirstRowID,

		file:     ice.DataFileWithoutColumnStats(task.File), // statistics are only for pruning, which is done
		position: task.DeleteFiles,
		equality: task.EqualityDeleteFiles,
		vectors:  task.DeletionVectorFiles,
	}
	if task.DataSequenceNumber != nil {
		d.sequence = *task.DataSequenceNumber
	}
	return d
}

// supported returns an error that names a file of d whose format is not supported.
func (d *dataFile) supported() error {
	for _, f := range slices.Concat([]ice.DataFile{d.file}, d.position, d.equality) {
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
	if s.Exact && t.Filter == nil && !t.partitioned() {
		return &scan.File{Columns: func(f *parquet.Footer) (*scan.Columns, error) { return t.columnsOf(f, d) }}, nil
	}
	plan, err := t.files(ctx, t.Compared)
	if err != nil {
		return nil, err
	}
	d, ok := plan.byName[fileName{s.File, s.Sequence}]
	if !ok {
		return nil, fmt.Errorf("data file %s: it is not in the plan of %s: the split is of another table, snapshot or filter", s.File, t.pin.MetadataLocation)
	}
	return t.scanned(d), nil
}

// scanned describes a planned data file.
func (t *Table) scanned(d *dataFile) *scan.File {
	f := &scan.File{
		Split: source.Split{
			File: d.file.FilePath(), FileSize: d.file.FileSizeBytes(), Sequence: d.sequence, FirstRowID: d.firstRowID, Exact: d.clean() && t.Filter == nil,
		},
		Rows: d.file.Count(), Stated: d.stated,
		Columns: func(f *parquet.Footer) (*scan.Columns, error) { return t.columnsOf(f, d) },
	}
	if !d.clean() {
		f.Deletes = func(ctx context.Context, c *scan.Columns) (scan.Deletes, error) { return t.deleted.deletes(ctx, d, c) }
	}
	return f
}
