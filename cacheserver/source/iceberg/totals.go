// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"fmt"
	"strings"

	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

// mendManifests says what can be done about manifests that contradict each other or the summary.
const mendManifests = "rows would be missing if the file is cut off; if the manifests are right and the number is wrong, " +
	"load what they list with --trust-manifests (DataCache: spec.arrow.trustManifests; TrainJob: TRUST_MANIFESTS=true)"

// counts are the live files of a manifest, or of several, and their rows.
type counts struct{ files, rows int64 }

// expected returns the counts of a manifest in the manifest list; false if they are missing, as lists of format v1 may omit them.
func expected(m ice.ManifestFile) (counts, bool) {
	known := min(int64(m.AddedDataFiles()), int64(m.ExistingDataFiles()), m.AddedRows(), m.ExistingRows()) >= 0
	return counts{int64(m.AddedDataFiles()) + int64(m.ExistingDataFiles()), m.AddedRows() + m.ExistingRows()}, known
}

func (l live) counts() counts { return counts{int64(l.count), l.rows} }

// checkManifest compares a manifest with what the manifest list says about it.
func checkManifest(m ice.ManifestFile, found live) error {
	if m.Length() > 0 && m.Length() != found.size {
		return fmt.Errorf("it has %d bytes, the manifest list says %d: %s", found.size, m.Length(), mendManifests)
	}
	if want, known := expected(m); known && want != found.counts() {
		return fmt.Errorf("it lists %d files with %d rows, the manifest list says %d with %d: %s", found.count, found.rows, want.files, want.rows, mendManifests)
	}
	return nil
}

// checkTotals compares the totals in a snapshot's summary with the live files and rows of its manifests: all of them, regardless of
// the filter. Totals that the writer omitted are not compared.
func (t *Table) checkTotals(f fileIO, snapshot *table.Snapshot, manifests []ice.ManifestFile) error {
	if f.trusted {
		return nil
	}
	var data, deletes counts
	for _, m := range manifests {
		n, known := expected(m)
		if !known {
			_, found, err := f.readManifest(m, nil)
			if err != nil {
				return fmt.Errorf("manifest %s: %w: restore it or roll the table back", m.FilePath(), err)
			}
			n = found.counts()
		}
		sum := &data
		if m.ManifestContent() == ice.ManifestContentDeletes {
			sum = &deletes
		}
		sum.files += n.files
		sum.rows += n.rows
	}
	all := map[int64]*table.Snapshot{}
	for _, s := range t.table.Metadata().Snapshots() {
		all[s.SnapshotID] = &s
	}
	for _, c := range []struct {
		counters []counter
		found    int64
	}{
		{[]counter{records}, data.rows},
		{[]counter{dataFiles}, data.files},
		{[]counter{deleteFiles}, deletes.files},
		{[]counter{positionDeletes, equalityDeletes}, deletes.rows}, // a manifest list counts both in one number
	} {
		if err := checkTotal(c.counters, c.found, snapshot, all); err != nil {
			return err
		}
	}
	return nil
}

// checkTotal compares the sum of some totals with what the manifest list has.
func checkTotal(counters []counter, found int64, snapshot *table.Snapshot, all map[int64]*table.Snapshot) error {
	var sum total
	var names []string
	for _, c := range counters {
		n, ok := totalOf(c, snapshot, all)
		if !ok {
			return nil
		}
		sum.n, sum.least = sum.n+n.n, sum.least || n.least
		names = append(names, c.total)
	}
	if sum.agrees(found) {
		return nil
	}
	return fmt.Errorf("snapshot %d: its summary says %s=%d, manifest list %s has %d: %s: restore it or roll the table back", snapshot.SnapshotID, strings.Join(names, "+"), sum.n, snapshot.ManifestList, found, mendManifests)
}
