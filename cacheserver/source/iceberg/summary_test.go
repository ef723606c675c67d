// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"fmt"
	"testing"

	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

// TestTotalOf follows totals through the ancestors of a snapshot. Each snapshot is total, added, removed; -1 omits the number.
func TestTotalOf(t *testing.T) {
	for name, tt := range map[string]struct {
		snapshots [][3]int64 // oldest first, each the parent of the next
		expired   int        // that many of the oldest are gone
		want      total
		ok        bool
	}{
		"first":                     {[][3]int64{{10, 10, 0}}, 0, total{10, false}, true},
		"appended":                  {[][3]int64{{10, 10, 0}, {15, 5, 0}}, 0, total{15, false}, true},
		"deleted":                   {[][3]int64{{10, 10, 0}, {6, 0, 4}}, 0, total{6, false}, true},
		"all replaced":              {[][3]int64{{10, 10, 0}, {3, 3, 10}}, 0, total{3, false}, true},
		"after all were deleted":    {[][3]int64{{10, 10, 0}, {0, 0, 10}, {5, 5, 0}}, 0, total{5, false}, true},
		"a new branch":              {[][3]int64{{10, 10, 0}, {5, 5, 0}}, 0, total{15, false}, true},
		"after a new branch":        {[][3]int64{{10, 10, 0}, {5, 5, 0}, {7, 2, 0}, {6, 0, 1}}, 0, total{16, false}, true},
		"two new branches":          {[][3]int64{{10, 10, 0}, {5, 5, 0}, {2, 2, 0}, {3, 1, 0}}, 0, total{18, false}, true},
		"nothing added":             {[][3]int64{{10, 10, 0}, {0, 0, 0}}, 0, total{10, false}, true},
		"expired":                   {[][3]int64{{10, 10, 0}, {15, 5, 0}, {16, 1, 0}}, 1, total{16, true}, true},
		"expired before its branch": {[][3]int64{{10, 10, 0}, {5, 5, 0}, {7, 2, 0}}, 1, total{7, true}, true},
		"deleted before a branch":   {[][3]int64{{10, 10, 0}, {10, -1, -1}, {5, 5, 0}}, 0, total{15, false}, true},
		"changes are not counted":   {[][3]int64{{10, -1, -1}, {0, -1, -1}, {5, -1, -1}}, 0, total{5, false}, true},
		"none":                      {[][3]int64{{10, 10, 0}, {-1, 5, 0}}, 0, total{}, false},
		"none in the parent":        {[][3]int64{{10, 10, 0}, {-1, 5, 0}, {5, 5, 0}}, 0, total{5, true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			all := map[int64]*table.Snapshot{}
			var last *table.Snapshot
			for i, numbers := range tt.snapshots {
				s := &table.Snapshot{SnapshotID: int64(i), Summary: &table.Summary{Properties: ice.Properties{}}}
				for j, key := range []string{records.total, records.added, records.removed} {
					if numbers[j] >= 0 {
						s.Summary.Properties[key] = fmt.Sprint(numbers[j])
					}
				}
				if last != nil {
					s.ParentSnapshotID = &last.SnapshotID
				}
				if last = s; i >= tt.expired {
					all[s.SnapshotID] = s
				}
			}
			if got, ok := totalOf(records, last, all); got != tt.want || ok != tt.ok {
				t.Errorf("got %v, %v, want %v, %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}

// TestTotalOfACycle checks that ancestors which form a cycle end.
func TestTotalOfACycle(t *testing.T) {
	s := &table.Snapshot{SnapshotID: 1, Summary: &table.Summary{Properties: ice.Properties{records.total: "5", records.added: "1"}}}
	s.ParentSnapshotID = &s.SnapshotID
	if got, ok := totalOf(records, s, map[int64]*table.Snapshot{1: s}); !ok || got.n != 5 {
		t.Errorf("got %v, %v", got, ok)
	}
}

func TestTotalAgrees(t *testing.T) {
	for found, want := range map[int64][2]bool{4: {false, false}, 5: {true, true}, 6: {false, true}} {
		if got := [2]bool{total{5, false}.agrees(found), total{5, true}.agrees(found)}; got != want {
			t.Errorf("%d found: got %v, want %v", found, got, want)
		}
	}
}
