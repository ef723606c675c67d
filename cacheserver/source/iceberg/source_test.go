// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"testing"

	ice "github.com/apache/iceberg-go"
	icetable "github.com/apache/iceberg-go/table"
	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/test/kit/icetest"
)

// TestSourceOpensWhatAnotherPlanned checks that a process can restore a plan from the JSON of another process and open it, also when
// the table has changed and the selection now selects another snapshot.
func TestSourceOpensWhatAnotherPlanned(t *testing.T) {
	table := icetest.Local(t).Create("reviews", 2, ice.NewSchema(0, ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64}))
	table.Append(icetest.Row{"id": 1})
	sourceOf := func(pinned *int64) *Source {
		return &Source{
			Store: objstore.New(objstore.Config{}), Location: Location{Metadata: table.Metadata()},
			Selection: Selection{Ref: "main", Columns: []string{"id"}}, Pinned: pinned,
		}
	}
	first, err := sourceOf(nil).Plan(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	table.Append(icetest.Row{"id": 2})
	for name, pinned := range map[string]*int64{"now": nil, "pinned": &first.Identity.Snapshot} {
		t.Run(name, func(t *testing.T) {
			head := sourceOf(pinned)
			planned, err := head.Plan(t.Context(), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			again, err := sourceOf(nil).Plan(t.Context(), planned.Version.Pin, nil) // whichever snapshot is current
			if err != nil || !cmp.Equal(planned.Splits, again.Splits) || again.Identity.Snapshot != planned.Identity.Snapshot {
				t.Errorf("planned again from the pin: %+v (%v), want %+v", again, err, planned)
			}
			restored, err := head.Restore(planned.Version.Pin)
			if err == nil {
				restored.Splits, err = source.DecodeSplits(source.EncodeSplits(planned.Splits))
			}
			if err != nil {
				t.Fatal(err)
			}
			restored.Schema = planned.Schema
			if diff := cmp.Diff(planned.Identity, restored.Identity); diff != "" || !cmp.Equal(planned.Version, restored.Version) || !cmp.Equal(planned.Splits, restored.Splits) {
				t.Errorf("restored %+v, want %+v", restored, planned)
			}
			node := &Source{Store: objstore.New(objstore.Config{}), Location: Location{Metadata: table.Metadata()}}
			dataset, err := node.Open(t.Context(), planned.Version, &source.Buffers{})
			if err != nil {
				t.Fatal(err)
			}
			var rows int64
			for _, s := range restored.Splits {
				rows += countRows(t, dataset, s)
			}
			if want := map[string]int64{"now": 2, "pinned": 1}[name]; rows != want {
				t.Errorf("%d rows, want %d", rows, want)
			}
		})
	}
}

// TestPinnedWithItsSchema opens a version that was planned as the current one by a process that knows its snapshot's number, and the reverse,
// where the table's schema changed after the snapshot.
func TestPinnedWithItsSchema(t *testing.T) {
	table := icetest.Local(t).Create("reviews", 2, ice.NewSchema(0, ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64}))
	table.Append(icetest.Row{"id": 1})
	table.Evolve(func(u *icetable.UpdateSchema) {
		u.AddColumn([]string{"label"}, ice.PrimitiveTypes.String, "", false, nil)
	}, func(icetest.Row) {})
	current := &Source{Store: objstore.New(objstore.Config{}), Location: Location{Metadata: table.Metadata()}}
	first, err := current.Plan(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	numbered := &Source{Store: current.Store, Location: current.Location, Pinned: &first.Identity.Snapshot}
	own, err := numbered.Plan(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if first.Schema.NumFields() != 2 || own.Schema.NumFields() != 1 {
		t.Fatalf("schemas %v and %v, want 2 columns and 1", first.Schema, own.Schema)
	}
	for name, tt := range map[string]struct {
		by   *Source
		plan *source.Plan
	}{"by number": {numbered, first}, "current": {current, own}} {
		again, err := tt.by.Plan(t.Context(), tt.plan.Version.Pin, nil)
		if err != nil || !again.Schema.Equal(tt.plan.Schema) || !cmp.Equal(again.Splits, tt.plan.Splits) {
			t.Errorf("%s: %+v (%v), want %+v", name, again, err, tt.plan)
		}
		restored, err := tt.by.Restore(tt.plan.Version.Pin)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := current.Open(t.Context(), restored.Version, &source.Buffers{}); err != nil {
			t.Errorf("%s: a data node that opens the restored version: %v", name, err)
		}
	}
}

// countRows decodes a split and counts its rows.
func countRows(t *testing.T, dataset source.Dataset, s source.Split) (rows int64) {
	t.Helper()
	fetched, err := dataset.Fetch(t.Context(), s, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer fetched.Close()
	for batch, err := range fetched.Batches(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		rows += batch.NumRows()
		batch.Release()
	}
	return rows
}
