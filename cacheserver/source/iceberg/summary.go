// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"slices"
	"strconv"

	"github.com/apache/iceberg-go/table"
)

// counter names a total in snapshot summaries, and the numbers of the same snapshot that it changes by (Iceberg spec, optional
// snapshot summary fields).
type counter struct{ total, added, removed string }

var (
	dataFiles       = counter{"total-data-files", "added-data-files", "deleted-data-files"}
	records         = counter{"total-records", "added-records", "deleted-records"}
	deleteFiles     = counter{"total-delete-files", "added-delete-files", "removed-delete-files"}
	positionDeletes = counter{"total-position-deletes", "added-position-deletes", "removed-position-deletes"}
	equalityDeletes = counter{"total-equality-deletes", "added-equality-deletes", "removed-equality-deletes"}

	allCounters = []counter{dataFiles, records, deleteFiles, positionDeletes, equalityDeletes}
)

// total is a number of files or rows of a snapshot according to summaries.
type total struct {
	n     int64
	least bool // the snapshot may have more
}

func (t total) agrees(found int64) bool { return found == t.n || (t.least && found > t.n) }

// totalOf returns a total of a snapshot; false if its summary lacks it.
//
// Iceberg's Java library begins to count at 0 in the first commit to a branch that did not exist, although the snapshot has all files
// of its parent (spark.wap.branch, SnapshotUpdate.toBranch). Later snapshots add to that number. So the parent's total is added where
// the count begins at 0; if an ancestor has expired, it may have begun there.
func totalOf(c counter, of *table.Snapshot, all map[int64]*table.Snapshot) (total, bool) {
	n, ok := number(of, c.total)
	if !ok {
		return total{}, false
	}
	sum := total{n: n}
	for range all { // at most once for each: parents may form a cycle in a corrupt table
		if of.ParentSnapshotID == nil {
			return sum, true
		}
		parent := all[*of.ParentSnapshotID]
		before, ok := number(parent, c.total)
		if !ok {
			break
		}
		if beginsAtZero(c, of) {
			sum.n += before
		}
		of = parent
	}
	sum.least = true
	return sum, true
}

// beginsAtZero reports whether a snapshot's total is what the snapshot itself added, as if its parent were empty. Nothing is known
// about a snapshot whose writer counts no changes.
func beginsAtZero(c counter, s *table.Snapshot) bool {
	n, ok := number(s, c.total)
	added, _ := number(s, c.added)
	removed, _ := number(s, c.removed)
	return ok && n == added-removed && slices.ContainsFunc(allCounters, func(each counter) bool {
		_, added := number(s, each.added)
		_, removed := number(s, each.removed)
		return added || removed
	})
}

// number returns a number of a snapshot's summary; false if there is none.
func number(s *table.Snapshot, name string) (int64, bool) {
	if s == nil || s.Summary == nil {
		return 0, false
	}
	n, err := strconv.ParseInt(s.Summary.Properties[name], 10, 64)
	return n, err == nil && n >= 0
}
