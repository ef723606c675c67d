// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	ice "github.com/apache/iceberg-go"
	diff "github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
	"github.com/kubeflow/datacache/test/kit/icetest"
)

// nothing checks that the node was not told anything.
func (f *fakeNode) nothing() {
	f.t.Helper()
	if m, told := f.next(); told {
		f.t.Fatalf("node %d was told %+v, want nothing", f.index, m)
	}
}

// wants checks which plan the cluster wants to gather.
func wants(t *testing.T, c *cluster, plan string) {
	t.Helper()
	if got := c.wanted().plan; got != plan {
		t.Fatalf("the cluster wants plan %q, want %q", got, plan)
	}
}

// loadedPlan returns a plan like splits10 whose rows were loaded, with hashes that begin with "h".
func loadedPlan(t *testing.T, nodes, n int) *tablePlan {
	t.Helper()
	p := splits10(t, nodes, n)
	for i := range p.splits {
		p.splits[i].rows, p.splits[i].loaded = 10, true
		copy(p.splits[i].hash[:], hash10("h", i))
	}
	var err error
	if p.outline.Loaded, err = p.sums(); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestHeldPlanReplacesAnUnservedOne(t *testing.T) {
	c := newCluster(t, 2)
	c.setPlan(splits10(t, 2, 4), start)
	b := &fakeNode{t: t, c: c, index: 1, incarnation: "b"}
	b.join(nil)
	b.load("h")
	a := &fakeNode{t: t, c: c, index: 0, incarnation: "a"}
	old := loadedPlan(t, 2, 2)
	a.join(&peer.Held{Plan: old.fingerprint, Request: "q", Ready: true})
	wants(t, c, old.fingerprint)
	c.restore(old, c.wanted(), start)
	expectState(t, c, protocol.StateDegraded, "data node 1 loading (0/1 splits)")
	if got := a.assignment(); got.Plan != old.fingerprint || !got.Ready || got.Part != nil {
		t.Errorf("assigned %s, ready %t, %d bytes of splits that it holds", got.Plan, got.Ready, len(got.Part))
	}
	if got := b.assignment(); got.Plan != old.fingerprint {
		t.Errorf("assigned %s", got.Plan)
	}
	b.send(peer.ToHead{Progress: &peer.Progress{Plan: old.fingerprint, Done: []peer.SplitDone{{Split: 1, Rows: 10, Hash: hash10("other", 1)}}}})
	expectState(t, c, protocol.StateFailed, "f1 row group 0 holds other rows") // the hashes were kept
}

// TestDigestsReplaceLostHashes checks that a part whose hashes no data node kept is compared with their digest once it is loaded.
func TestDigestsReplaceLostHashes(t *testing.T) {
	for hash, want := range map[string]protocol.State{"h": protocol.StateReady, "x": protocol.StateFailed} {
		c := newCluster(t, 1)
		p := loadedPlan(t, 1, 2)
		a := &fakeNode{t: t, c: c, index: 0, incarnation: "a"}
		a.join(&peer.Held{Plan: p.fingerprint, Request: "q", Ready: true})
		for i := range p.splits {
			p.splits[i].loaded = false
		}
		c.restore(p, c.wanted(), start)
		a.load(hash)
		expectState(t, c, want, "")
	}
}

func TestHeldPlans(t *testing.T) {
	own := splits10(t, 2, 4)
	loaded := &peer.Held{Plan: "x", Request: "q"}
	ready := &peer.Held{Plan: "x", Request: "q", Ready: true}
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
		{"held, the same as its own", ownPlan, &peer.Held{Plan: own.fingerprint, Request: "q"}, false},
		{"held, another one held", heldPlan, loaded, false},
		{"was ready, another one held", heldPlan, ready, true},
		{"was ready, so was the cache", readyPlan, ready, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newCluster(t, 2)
			if tt.before != noPlan {
				c.adoptLocked(own, tt.before, start)
			}
			if got := c.data.wants(tt.held); got != tt.want {
				t.Errorf("wanted: %t, want %t", got, tt.want)
			}
		})
	}
}

func TestPlanOfOwnComesDuringARecall(t *testing.T) {
	c := newCluster(t, 2)
	a := &fakeNode{t: t, c: c, index: 0, incarnation: "a"}
	old := splits10(t, 2, 2)
	a.join(&peer.Held{Plan: old.fingerprint, Request: "q"})
	wants(t, c, old.fingerprint)
	c.setPlan(splits10(t, 2, 4), start)
	a.nothing()
	c.restore(old, c.wanted(), start)
	if got := a.assignment().Plan; got != old.fingerprint {
		t.Errorf("assigned %s", got)
	}
	wants(t, c, "")
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
	if m, _ := a.next(); m.Abort == nil || m.Abort.Plan != "" {
		t.Errorf("the node was told %+v, want why the cache failed", m)
	}

	late := newCluster(t, 1)
	late.planningFailed("no such file", start)
	late.tick(start.Add(29 * time.Second))
	expectState(t, late, protocol.StatePlanning, "waiting for data node 0")
	late.tick(start.Add(31 * time.Second))
	expectState(t, late, protocol.StateFailed, "no such file")
	n := &fakeNode{t: t, c: late, incarnation: "n"}
	old := loadedPlan(t, 1, 1)
	n.join(&peer.Held{Plan: old.fingerprint, Request: "q", Ready: true})
	late.restore(old, late.wanted(), start)
	n.load("h")
	expectState(t, late, protocol.StateReady, "ready")
}

// keeper answers the recalls of a head like a data node that keeps an outline and parts of a plan.
type keeper struct {
	*fakeNode
	outline []byte
	parts   map[int]peer.Piece
}

// run answers until the test ends, in pieces of a few bytes.
func (k *keeper) run(ctx context.Context) {
	send := func(p peer.Piece) {
		for len(p.Splits)+len(p.Loaded) > 0 {
			some := peer.Piece{Splits: p.Splits[:min(len(p.Splits), 100)]}
			if p.Splits = p.Splits[len(some.Splits):]; len(some.Splits) == 0 {
				some.Loaded, p.Loaded = p.Loaded[:min(len(p.Loaded), 100)], p.Loaded[min(len(p.Loaded), 100):]
			}
			_ = k.s.pass(ctx, some)
		}
		_ = k.s.pass(ctx, peer.Piece{Last: true})
	}
	for {
		select {
		case m := <-k.s.out:
			switch {
			case m.Recall == nil:
			case m.Recall.Part == peer.Outline:
				send(peer.Piece{Splits: k.outline})
			default:
				send(k.parts[m.Recall.Part])
			}
		case <-ctx.Done():
			return
		}
	}
}

// TestGather restarts the head of a cache of five data nodes, of which each keeps three parts of the plan, after some have been lost.
func TestGather(t *testing.T) {
	tests := map[string]struct {
		lost   []int // data nodes that restarted too
		absent []int // that don't join
		nodes  int   // of the restarted head; 0: 5
		change bool  // a file is overwritten
		want   string
	}{
		"all keep their parts":     {},
		"each part is kept once":   {lost: []int{0, 1, 3}},
		"two are lost for good":    {absent: []int{2, 3}},
		"all three keepers lost":   {lost: []int{1, 2, 3}},
		"all but one lost":         {lost: []int{0, 1, 2, 3}},
		"three lost for good":      {absent: []int{1, 2, 3}},
		"lost, and a file changed": {lost: []int{1, 2, 3}, change: true, want: "has other splits now"},
		"for four nodes":           {nodes: 4},
		"for seven nodes":          {nodes: 7},
		"lost, for seven nodes":    {lost: []int{1, 2, 3}, nodes: 7, want: "no data node knows the hashes"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			table := icetest.Local(t).Create("reviews", 2, ice.NewSchema(0, ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64}))
			for i := range 10 {
				table.Append(icetest.Row{"id": i})
			}
			store := objstore.New(objstore.Config{})
			pinned := table.Metadata()
			head := func(nodes int) *Head {
				h, err := New(Config{Nodes: nodes, NodeTimeout: time.Second, Config: role.Config{
					Log: slog.New(slog.DiscardHandler), Store: store,
					Source: &iceberg.Source{Store: store, Location: iceberg.Location{Metadata: pinned}},
				}})
				if err != nil {
					t.Fatal(err)
				}
				return h
			}
			p, err := head(5).makePlan(t.Context(), nil, 5)
			if err != nil {
				t.Fatal(err)
			}
			for i := range p.splits {
				p.splits[i].rows, p.splits[i].loaded = 1, true
				copy(p.splits[i].hash[:], hash10("h", i))
			}
			if p.outline.Loaded, err = p.sums(); err != nil {
				t.Fatal(err)
			}
			encoded, err := json.Marshal(p.outline)
			if err != nil {
				t.Fatal(err)
			}
			if tt.change {
				split, err := p.split(0)
				if err == nil {
					err = os.Chtimes(strings.TrimPrefix(split.File, "file://"), time.Time{}, time.Unix(1_800_000_000, 0))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			table.Append(icetest.Row{"id": 99})
			h := head(cmp.Or(tt.nodes, 5))
			for node := range min(5, h.cfg.Nodes) {
				if slices.Contains(tt.absent, node) {
					continue
				}
				k := &keeper{fakeNode: &fakeNode{t: t, c: h.cluster, index: node, incarnation: fmt.Sprint(node)}, outline: encoded, parts: map[int]peer.Piece{}}
				var held *peer.Held
				if !slices.Contains(tt.lost, node) {
					held = &peer.Held{Plan: p.fingerprint, Request: h.cluster.data.request, Ready: true}
				}
				for _, part := range assign.Kept(node, 5) {
					run := p.runs[part]
					k.parts[part] = peer.Piece{Splits: p.parts[part], Loaded: encodeLoaded(p.splits[run.First:run.End])}
				}
				k.join(held)
				go k.run(t.Context())
			}
			got, err := h.gather(t.Context(), h.cluster.wanted())
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Fatalf("gathered %v, %v, want an error with %q", got, err, tt.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.dataset != p.dataset || len(got.splits) != len(p.splits) || len(got.runs) != h.cfg.Nodes || !got.Schema.Equal(p.Schema) {
				t.Fatalf("gathered %+v, want %+v", got, p)
			}
			if tt.nodes == 0 && (got.fingerprint != p.fingerprint || !diff.Equal(p.parts, got.parts)) {
				t.Errorf("gathered plan %s, want %s", got.fingerprint, p.fingerprint)
			}
			lost := 0
			for i := range got.splits {
				if got.splits[i] != p.splits[i] {
					lost++
				}
			}
			if all := len(tt.lost)+len(tt.absent) < 3; all != (lost == 0) && name != "each part is kept once" {
				t.Errorf("%d of %d splits' hashes are not known", lost, len(got.splits))
			}
		})
	}
}
