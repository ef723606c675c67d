// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"testing"

	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
	"github.com/kubeflow/datacache/test/kit/icetest"
)

// TestPin: a head that is told what an earlier one planned plans the same rows after the table went on, and takes them from data nodes that
// hold them: it was asked for the same.
func TestPin(t *testing.T) {
	table := icetest.Local(t).Create("reviews", 2, ice.NewSchema(0, ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64}))
	table.Append(icetest.Row{"id": 1})
	head := func(pin *int64) *Head {
		h, err := New(Config{
			Nodes: 1, Store: objstore.New(objstore.Config{}), Pin: pin,
			Source: iceberg.Source{Metadata: table.Metadata()}, Selection: iceberg.Selection{Ref: "main"},
		})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	planned := func(h *Head) *tablePlan {
		p, err := h.makePlan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first := planned(head(nil))
	table.Append(icetest.Row{"id": 2})

	unpinned, pinned := head(nil), head(&first.pin.SnapshotID)
	if moved := planned(unpinned); moved.pin.SnapshotID == first.pin.SnapshotID {
		t.Fatalf("without a pin snapshot %d is planned, want the newer one", moved.pin.SnapshotID)
	}
	again := planned(pinned)
	if again.pin.SnapshotID != first.pin.SnapshotID || again.dataset != first.dataset {
		t.Errorf("with a pin %+v is planned, want %+v", again.dataset, first.dataset)
	}
	if pinned.cluster.request != unpinned.cluster.request {
		t.Error("a pin changes what a head was asked for: data nodes would drop the rows that they hold")
	}
}
