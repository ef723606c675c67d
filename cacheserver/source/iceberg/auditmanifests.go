// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"bytes"
	"context"
	"fmt"

	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/kubeflow/datacache/cacheserver/source/parquet"
)

// auditManifests compares the summary with the manifests and the manifest list with each of them. It returns the live data files.
func (t *Table) auditManifests(ctx context.Context, a *Audit) ([]*fileAudit, error) {
	snapshot, err := t.scan.ResolveSnapshot()
	if err != nil || snapshot == nil {
		return nil, err
	}
	files := fileIO{ctx: ctx, store: t.Store, trusted: true}
	list, err := snapshot.Manifests(listIO{files})
	if err != nil {
		return nil, fmt.Errorf("manifest list %s: %w: restore it or roll the table back", snapshot.ManifestList, err)
	}
	var data []*fileAudit
	found := map[counter]int64{}
	for _, m := range list {
		e, err := files.auditManifest(m, a)
		if err != nil {
			return nil, fmt.Errorf("manifest %s: %w: restore it or roll the table back", m.FilePath(), err)
		}
		for _, entry := range e {
			d := entry.DataFile()
			countFile(found, d)
			if d.ContentType() == ice.EntryContentData {
				data = append(data, &fileAudit{table: t, file: d, data: newDataFile(d, entry.SequenceNum(), t.identity, nil, nil), found: AuditedFile{File: d.FilePath()}})
			}
		}
	}
	a.DeleteFiles = found[deleteFiles]
	all := map[int64]*table.Snapshot{}
	for _, s := range t.table.Metadata().Snapshots() {
		all[s.SnapshotID] = &s
	}
	for _, c := range allCounters {
		if want, ok := totalOf(c, snapshot, all); ok && !want.agrees(found[c]) {
			a.Differences = append(a.Differences, Difference{
				File: snapshot.ManifestList, By: "summary", What: c.total, Says: fmt.Sprint(want.n), Has: fmt.Sprint(found[c]), Hides: true,
			})
		}
	}
	return data, nil
}

func countFile(found map[counter]int64, d ice.DataFile) {
	switch d.ContentType() {
	case ice.EntryContentData:
		found[dataFiles]++
		found[records] += d.Count()
	case ice.EntryContentPosDeletes:
		found[deleteFiles]++
		found[positionDeletes] += d.Count()
	case ice.EntryContentEqDeletes:
		found[deleteFiles]++
		found[equalityDeletes] += d.Count()
	}
}

// auditManifest returns the live entries of a manifest, and compares all of them with the manifest list.
func (f fileIO) auditManifest(m ice.ManifestFile, a *Audit) (live []ice.ManifestEntry, err error) {
	defer parquet.RecoverError(&err)
	data, found, err := f.readManifest(m, nil)
	if err != nil {
		return nil, err
	}
	var files, rows [3]int64 // by status
	for entry, err := range m.Entries(memFile{Reader: bytes.NewReader(data), uri: m.FilePath()}, false) {
		if err != nil {
			return nil, err
		}
		files[entry.Status()]++
		rows[entry.Status()] += entry.DataFile().Count()
		if entry.Status() != ice.EntryStatusDELETED {
			live = append(live, entry)
		}
	}
	length := m.Length()
	if length == 0 { // of a manifest that no list lists
		length = -1
	}
	for _, c := range []struct {
		what      string
		said, has int64
		hides     bool
	}{
		{"added files", int64(m.AddedDataFiles()), files[ice.EntryStatusADDED], true},
		{"existing files", int64(m.ExistingDataFiles()), files[ice.EntryStatusEXISTING], true},
		{"deleted files", int64(m.DeletedDataFiles()), files[ice.EntryStatusDELETED], false},
		{"added rows", m.AddedRows(), rows[ice.EntryStatusADDED], true},
		{"existing rows", m.ExistingRows(), rows[ice.EntryStatusEXISTING], true},
		{"deleted rows", m.DeletedRows(), rows[ice.EntryStatusDELETED], false},
		{"bytes", length, found.size, true},
	} {
		if c.said >= 0 && c.said != c.has {
			a.Differences = append(a.Differences, Difference{
				File: m.FilePath(), By: "manifest list", What: c.what, Says: fmt.Sprint(c.said), Has: fmt.Sprint(c.has), Hides: c.hides,
			})
		}
	}
	return live, nil
}
