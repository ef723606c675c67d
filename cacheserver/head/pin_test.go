// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"testing"

	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
	"github.com/kubeflow/datacache/test/kit/icetest"
)

// TestPin checks that a head configured with the snapshot that an earlier head planned plans the same rows after the table has
// changed, and accepts them from data nodes that hold them, since the request is the same.
func TestPin(t *testing.T) {
	table := icetest.Local(t).Create("reviews", 2, ice.NewSchema(0, ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64}))
	table.Append(icetest.Row{"id": 1})
	store := objstore.New(objstore.Config{})
	head := func(pin *int64) *Head {
		h, err := New(Config{
			Nodes: 1, Config: role.Config{Store: store, Source: &iceberg.Source{
				Store: store, Location: iceberg.Location{Metadata: table.Metadata()}, Selection: iceberg.Selection{Ref: "main"}, Pinned: pin,
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	planned := func(h *Head) *tablePlan {
		p, err := h.makePlan(t.Context(), nil, 1)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first := planned(head(nil))
	table.Append(icetest.Row{"id": 2})

	unpinned, pinned := head(nil), head(&first.dataset.Snapshot)
	if moved := planned(unpinned); moved.dataset.Snapshot == first.dataset.Snapshot {
		t.Fatalf("without a pin snapshot %d is planned, want the newer one", moved.dataset.Snapshot)
	}
	again := planned(pinned)
	if again.dataset.Snapshot != first.dataset.Snapshot || again.dataset != first.dataset {
		t.Errorf("with a pin %+v is planned, want %+v", again.dataset, first.dataset)
	}
	if pinned.cluster.data.request != unpinned.cluster.data.request {
		t.Error("a pin changes what a head was asked for: data nodes would drop the rows that they hold")
	}
}
