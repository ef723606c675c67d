// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"errors"
	"fmt"
	"math"
	"slices"

	ice "github.com/apache/iceberg-go"
	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/cacheserver/source/parquet"
)

// live describes the live entries of a manifest: those that are not marked as deleted.
type live struct {
	count          int
	rows           int64
	size           int64          // bytes of the manifest, as stored
	oldest, newest int64          // their lowest and highest data sequence number
	empty          []ice.DataFile // files that have no rows, according to the manifest
}

// liveEntries decodes all entries of a manifest, checks the live ones, and calls visit, unless it is nil, with each of these.
func liveEntries(m ice.ManifestFile, held memFile, visit func(ice.ManifestEntry)) (found live, err error) {
	defer parquet.RecoverError(&err)
	found = live{oldest: math.MaxInt64, newest: math.MinInt64}
	for entry, err := range m.Entries(held, false) {
		if err != nil {
			return live{}, err
		}
		d := entry.DataFile()
		_ = d.Partition()
		if entry.Status() == ice.EntryStatusDELETED {
			continue
		}
		if err := checkEntry(entry); err != nil {
			return live{}, fmt.Errorf("%s %s: %w", roleOf(d), d.FilePath(), err)
		}
		found.count++
		found.rows += d.Count()
		found.oldest, found.newest = min(found.oldest, entry.SequenceNum()), max(found.newest, entry.SequenceNum())
		if d.FileFormat() == ice.ParquetFile && d.Count() == 0 {
			found.empty = append(found.empty, d)
		}
		if visit != nil {
			visit(entry)
		}
	}
	if m.ManifestContent() == ice.ManifestContentData && found.oldest < m.MinSequenceNum() {
		return live{}, fmt.Errorf("a file has sequence number %d, but min_sequence_number in the manifest list is %d: deletes would not be applied to it", found.oldest, m.MinSequenceNum())
	}
	return found, nil
}

// checkEntry checks that a live entry has the fields that determine which rows are deleted. iceberg-go ignores a delete file without
// them, or applies it to other rows.
func checkEntry(entry ice.ManifestEntry) error {
	d := entry.DataFile()
	if entry.SequenceNum() < 0 {
		return fmt.Errorf("its sequence_number is %d or missing, which decides what deletes what", entry.SequenceNum())
	}
	switch {
	case d.ContentType() == ice.EntryContentEqDeletes && len(d.EqualityFieldIDs()) == 0:
		return errors.New("its equality_ids are missing: it names no fields to compare")
	case d.ContentType() == ice.EntryContentPosDeletes && d.FileFormat() == ice.PuffinFile:
		return checkVector(d)
	}
	return nil
}

// checkVector checks that a deletion vector names its data file and its place in the Puffin file.
func checkVector(d ice.DataFile) error {
	if of := d.ReferencedDataFile(); of == nil || *of == "" {
		return errors.New("its referenced_data_file is missing: it does not say whose rows it deletes")
	}
	if at := d.ContentOffset(); at == nil || *at < 0 {
		return errors.New("its content_offset is missing or negative")
	}
	if size := d.ContentSizeInBytes(); size == nil || *size < 0 {
		return errors.New("its content_size_in_bytes is missing or negative")
	}
	return nil
}

// roleOf names the kind of a file in messages.
func roleOf(d ice.DataFile) string {
	switch {
	case d.ContentType() == ice.EntryContentData:
		return "data file"
	case d.FileFormat() == ice.PuffinFile:
		return "deletion vector"
	}
	return "delete file"
}

// comparing names the delete file of d that compares a field, for messages.
func (d *dataFile) comparing(id int) string {
	if d.deletes == nil {
		return ""
	}
	for _, del := range d.deletes.equality {
		if slices.Contains(del.EqualityFieldIDs(), id) {
			return fmt.Sprintf("delete file %s: equality_ids: ", del.FilePath())
		}
	}
	return ""
}

// checkSkipped reads the manifests that iceberg-go skips because of what the manifest list says of them, and checks that it is true:
// that they have no live entries, or, of delete files, only ones older than all data.
func (f fileIO) checkSkipped(list []ice.ManifestFile) error {
	oldest := int64(math.MaxInt64)
	for _, m := range list {
		if m.ManifestContent() == ice.ManifestContentData {
			oldest = min(oldest, m.MinSequenceNum())
		}
	}
	var group errgroup.Group
	group.SetLimit(matchReaders)
	for _, m := range list {
		none := !m.HasAddedFiles() && !m.HasExistingFiles()
		old := m.ManifestContent() == ice.ManifestContentDeletes && m.SequenceNum() < oldest
		if !none && !old {
			continue
		}
		group.Go(func() error {
			_, found, err := f.readManifest(m, nil)
			switch {
			case err != nil:
			case none && found.count > 0:
				err = fmt.Errorf("it has %d live files, but added_files_count and existing_files_count in the manifest list are 0", found.count)
			case old && found.count > 0 && found.newest >= oldest:
				err = fmt.Errorf("a delete file has sequence number %d, but sequence_number in the manifest list is %d", found.newest, m.SequenceNum())
			}
			if err != nil {
				return fmt.Errorf("manifest %s: %w: restore it or roll the table back", m.FilePath(), err)
			}
			return nil
		})
	}
	return group.Wait()
}
