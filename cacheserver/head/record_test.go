// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
)

// recalled asserts that the record of its plan was requested from the node.
func (f *fakeNode) recalled() {
	f.t.Helper()
	select {
	case m := <-f.s.out:
		if m.Recall == nil {
			f.t.Fatalf("node %d was told %+v, want a recall", f.index, m)
		}
	default:
		f.t.Fatalf("node %d was not told anything, want a recall", f.index)
	}
}

// nothing asserts that nothing was sent to the node.
func (f *fakeNode) nothing() {
	f.t.Helper()
	select {
	case m := <-f.s.out:
		f.t.Fatalf("node %d was told %+v, want nothing", f.index, m)
	default:
	}
}

// TestHeldPlanReplacesAnUnservedOne: a new head has planned a newer snapshot, and one node has loaded its part of that. Another node
// then brings the plan that clients have seen, which must replace the newer one.
func TestHeldPlanReplacesAnUnservedOne(t *testing.T) {
	c := newCluster(t, 2)
	c.setPlan(splits10(2, 4), nil, start)
	b := &fakeNode{t: t, c: c, index: 1, incarnation: "b"}
	b.join(nil)
	b.load("h")
	a := &fakeNode{t: t, c: c, index: 0, incarnation: "a"}
	a.join(&peer.Held{Plan: "plan-2-2", Request: "q", Ready: true})
	a.recalled()
	old := splits10(2, 2)
	done := []peer.SplitDone{{Split: 0, Rows: 10, Hash: "h0"}, {Split: 1, Rows: 10, Hash: "h1"}}
	c.restore(a.s, old, nil, done, start)
	expectState(t, c, protocol.StateDegraded, "data node 1 loading (0/1 splits)")
	if got := a.assignment(); got.Plan != "plan-2-2" || !got.Ready {
		t.Errorf("assigned %s, ready %t", got.Plan, got.Ready)
	}
	if got := b.assignment(); got.Plan != "plan-2-2" {
		t.Errorf("assigned %s", got.Plan)
	}
	b.send(peer.ToHead{Progress: &peer.Progress{Plan: "plan-2-2", Done: []peer.SplitDone{{Split: 1, Rows: 10, Hash: "other"}}}})
	expectState(t, c, protocol.StateFailed, "f1 row group 0 holds other rows") // the record of the plan contains the hashes
}

func TestHeldPlans(t *testing.T) {
	loaded := &peer.Held{Plan: "plan-2-2", Request: "q"}
	tests := []struct {
		name   string
		before origin
		held   *peer.Held
		want   bool
	}{
		{"nothing held", noPlan, nil, false},
		{"of another request", noPlan, &peer.Held{Plan: "x", Request: "other", Ready: true}, false},
		{"held, none known", noPlan, loaded, true},
		{"held, own plan", ownPlan, loaded, true},
		{"held, the same as its own", ownPlan, &peer.Held{Plan: "plan-2-4", Request: "q"}, false},
		{"held, another one held", heldPlan, loaded, false},
		{"was ready, another one held", heldPlan, &peer.Held{Plan: "plan-2-2", Request: "q", Ready: true}, true},
		{"was ready, so was the cache", readyPlan, &peer.Held{Plan: "plan-2-2", Request: "q", Ready: true}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newCluster(t, 2)
			if tt.before != noPlan {
				c.adoptLocked(splits10(2, 4), tt.before, nil, nil, start)
			}
			if got := c.data.wants(tt.held); got != tt.want {
				t.Errorf("wanted: %t, want %t", got, tt.want)
			}
		})
	}
}

// TestPlanOfOwnComesDuringARecall checks that a head's own plan is not assigned to a node whose record was requested.
func TestPlanOfOwnComesDuringARecall(t *testing.T) {
	c := newCluster(t, 2)
	a := &fakeNode{t: t, c: c, index: 0, incarnation: "a"}
	a.join(&peer.Held{Plan: "plan-2-2", Request: "q"})
	a.recalled()
	c.setPlan(splits10(2, 4), nil, start)
	a.nothing()
	c.restore(a.s, splits10(2, 2), nil, nil, start)
	if got := a.assignment().Plan; got != "plan-2-2" {
		t.Errorf("assigned %s", got)
	}
	expectState(t, c, protocol.StateLoading, "")
}

func TestPlanningThatFailsWaitsForNodes(t *testing.T) {
	c := newCluster(t, 2)
	a := &fakeNode{t: t, c: c, index: 0, incarnation: "a"}
	a.join(nil)
	c.planningFailed("no such file", start)
	expectState(t, c, protocol.StatePlanning, "failed: no such file; waiting for data node 1, which may hold the rows")
	a.nothing()
	b := &fakeNode{t: t, c: c, index: 1, incarnation: "b"}
	b.join(nil)
	expectState(t, c, protocol.StateFailed, "no such file")
	if m := <-a.s.out; m.Abort == nil || m.Abort.Plan != "" {
		t.Errorf("the node was told %+v, want why the cache failed", m)
	}

	late := newCluster(t, 1)
	late.planningFailed("no such file", start)
	late.tick(start.Add(29 * time.Second))
	expectState(t, late, protocol.StatePlanning, "waiting for data node 0")
	late.tick(start.Add(31 * time.Second))
	expectState(t, late, protocol.StateFailed, "no such file")
	n := &fakeNode{t: t, c: late, incarnation: "n"}
	n.join(&peer.Held{Plan: "plan-1-1", Request: "q", Ready: true})
	n.recalled()
	late.restore(n.s, splits10(1, 1), nil, []peer.SplitDone{{Rows: 10, Hash: "h0"}}, start)
	n.load("h")
	expectState(t, late, protocol.StateReady, "ready")
}

// TestRecordHoldsThePlan checks that the record of a plan restores the same plan, also with another number of nodes.
func TestRecordHoldsThePlan(t *testing.T) {
	h := &Head{cfg: Config{Nodes: 2, Config: role.Config{Source: &iceberg.Source{Selection: iceberg.Selection{Filter: "id > 1"}}}}}
	from := splits10(2, 4)
	pin, err := json.Marshal(iceberg.Pin{UUID: "u", SnapshotID: 7})
	if err != nil {
		t.Fatal(err)
	}
	from.Version.Pin, from.Identity = pin, source.Identity{UUID: "u", Snapshot: 7, Filter: "id > 1"}
	p, err := newPlan(&from.Plan, h.cfg.Nodes)
	if err != nil {
		t.Fatal(err)
	}
	done := []peer.SplitDone{{Split: 0, Rows: 10, Hash: "a"}, {Split: 1}, {Split: 2}, {Split: 3}}
	encoded, err := encodeRecord(p, done)
	if err != nil {
		t.Fatal(err)
	}
	r, err := decodeRecord(encoded)
	if err != nil {
		t.Fatal(err)
	}
	again, err := r.plan(h.cfg.Source, h.cfg.Nodes)
	if err != nil {
		t.Fatal(err)
	}
	if again.fingerprint != p.fingerprint || !again.Schema.Equal(p.Schema) || again.dataset != p.dataset || !cmp.Equal(done, r.Done) {
		t.Errorf("got %+v with %v, want %+v with %v", again, r.Done, p, done)
	}
	h.cfg.Nodes = 3
	if other, err := r.plan(h.cfg.Source, h.cfg.Nodes); err != nil || len(other.runs) != 3 || other.dataset != p.dataset || other.fingerprint == p.fingerprint {
		t.Errorf("for three nodes: %+v, %v", other, err)
	}
	if _, err := decodeRecord(encoded[:len(encoded)/2]); err == nil {
		t.Error("half a record was read")
	}
}
