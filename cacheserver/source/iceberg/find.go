// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"context"
	"fmt"
	"slices"

	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
)

const (
	// manifestReaders is the number of manifests that are read concurrently, as far as manifestBytes allows.
	manifestReaders = 64
	// manifestBytes bounds the length of all manifests that are read concurrently, if there are no deletes.
	manifestBytes = 32 << 20
	// matchReaders is the number of manifests that iceberg-go reads concurrently to match data files with deletes.
	matchReaders = 16
)

// finder finds the data files of a table's snapshot that may contain selected rows.
type finder struct {
	*Table
	files     fileIO
	list      []ice.ManifestFile
	manifests map[string]ice.ManifestFile // of list, by URI; those that the filter excludes are pruned
	prune     *pruner
	stated    []column.Field // fields whose bounds in the manifests are kept
}

// findFiles returns the data files of the snapshot that may contain selected rows, with the deletes that apply to them. It keeps the bounds
// that manifests state of some fields.
func findFiles(ctx context.Context, t *Table, stated []column.Field) (_ []foundFile, err error) {
	defer parquet.RecoverError(&err)
	snapshot, err := t.scan.ResolveSnapshot()
	if err != nil || snapshot == nil {
		return nil, err
	}
	f := &finder{Table: t, files: fileIO{ctx: ctx, store: t.Store, trusted: t.trusted}, stated: stated}
	if f.list, err = snapshot.Manifests(listIO{f.files}); err != nil {
		return nil, fmt.Errorf("manifest list %s: %w: restore it or roll the table back", snapshot.ManifestList, err)
	}
	if err := f.checkList(); err != nil {
		return nil, fmt.Errorf("manifest list %s %w", snapshot.ManifestList, err)
	}
	if err := t.checkTotals(f.files, snapshot, f.list); err != nil {
		return nil, err
	}
	if err := f.files.checkSkipped(f.list); err != nil {
		return nil, err
	}
	if f.prune, err = t.newPruner(); err != nil {
		return nil, fmt.Errorf("project the filter on the partitions: %w", err)
	}
	for uri, m := range f.manifests {
		if !f.prune.manifest(m) {
			f.manifests[uri] = pruned{m}
		}
	}
	t.manifests.Store(&f.manifests)
	if slices.ContainsFunc(f.list, func(m ice.ManifestFile) bool { return m.ManifestContent() == ice.ManifestContentDeletes }) {
		return f.match(ctx)
	}
	return f.read(ctx)
}

// checkList sets manifests. An error begins with what the list does wrong.
func (f *finder) checkList() error {
	f.manifests = make(map[string]ice.ManifestFile, len(f.list))
	for _, m := range f.list {
		uri, spec := m.FilePath(), int(m.PartitionSpecID())
		if c := m.ManifestContent(); c != ice.ManifestContentData && c != ice.ManifestContentDeletes {
			return fmt.Errorf("names manifest %s, whose content is %d, neither data (0) nor deletes (1): restore the list or roll the table back", uri, c)
		}
		if _, again := f.manifests[uri]; again {
			return fmt.Errorf("names manifest %s twice, which would double its rows: roll the table back to a snapshot with a good list, or rewrite its manifests", uri)
		}
		if f.table.Metadata().PartitionSpecByID(spec) == nil {
			return fmt.Errorf("names manifest %s of partition spec %d, which the table does not have: restore the list or roll the table back", uri, spec)
		}
		f.manifests[uri] = m
	}
	return nil
}

// match has iceberg-go read the manifests and match data files with their deletes.
func (f *finder) match(ctx context.Context) ([]foundFile, error) {
	tasks, err := f.scan.PlanFiles(ctx)
	if err != nil {
		return nil, err
	}
	var found []foundFile
	for i, task := range tasks {
		tasks[i] = table.FileScanTask{}                  // statistics are only for pruning, and take most of the memory
		if task.Start != 0 || !f.prune.file(task.File) { // iceberg-go cuts long files, which are in the plan once
			continue
		}
		var deletes *fileDeletes
		if len(task.DeleteFiles)+len(task.EqualityDeleteFiles)+len(task.DeletionVectorFiles) > 0 {
			deletes = &fileDeletes{task.DeleteFiles, task.EqualityDeleteFiles, task.DeletionVectorFiles}
		}
		sequence := int64(0)
		if task.DataSequenceNumber != nil {
			sequence = *task.DataSequenceNumber
		}
		found = append(found, newDataFile(task.File, sequence, f.identity, deletes, f.stated))
	}
	return found, nil
}

// read reads the manifests of a snapshot without deletes. They are decoded once, and statistics are dropped at once.
func (f *finder) read(ctx context.Context) ([]foundFile, error) {
	perManifest := make([][]foundFile, len(f.list))
	room := semaphore.NewWeighted(manifestBytes)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(manifestReaders)
	files := fileIO{ctx: ctx, store: f.Store, trusted: f.trusted}
	for i, m := range f.list {
		if _, skip := f.manifests[m.FilePath()].(pruned); skip || !m.HasAddedFiles() && !m.HasExistingFiles() {
			continue
		}
		size := min(max(m.Length(), 1), manifestBytes)
		group.Go(func() error {
			if err := room.Acquire(ctx, size); err != nil {
				return context.Cause(ctx)
			}
			defer room.Release(size)
			_, err := files.checkedManifest(m, func(entry ice.ManifestEntry) {
				if d := entry.DataFile(); d.Count() > 0 && f.prune.file(d) {
					perManifest[i] = append(perManifest[i], newDataFile(d, entry.SequenceNum(), f.identity, nil, f.stated))
				}
			})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return slices.Concat(perManifest...), nil
}
