// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
)

var start = time.Unix(1_800_000_000, 0)

// newCluster is a cluster of n nodes with timeouts of 10 s of silence and 60 s to join.
func newCluster(t *testing.T, n int) *cluster {
	t.Helper()
	return &cluster{
		nodeTimeout: 10 * time.Second, joinTimeout: time.Minute, loadTimeout: 10 * time.Minute, started: start,
		salt: []byte("k"), members: make([]member, n), data: newDataset("q", n, start),
	}
}

// splits10 is a plan of n splits of 10 rows each over the nodes, one int64 column.
func splits10(nodes, n int) *tablePlan {
	p := &tablePlan{
		fingerprint: fmt.Sprintf("plan-%d-%d", nodes, n), dataset: protocol.Dataset{TableUUID: "u", Snapshot: 7},
		Plan: source.Plan{
			Schema: arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil),
		},
	}
	weights := make([]int64, n)
	for i := range n {
		weights[i] = 80
		p.Splits = append(p.Splits, iceberg.Split{File: fmt.Sprintf("f%d", i), Rows: 10, Bytes: 80, Exact: true})
	}
	p.runs, p.encoded = assign.ByWeight(weights, nodes), make([]json.RawMessage, n)
	return p
}

// fakeNode plays a data node against the cluster.
type fakeNode struct {
	t           *testing.T
	c           *cluster
	index       int
	incarnation string
	s           *session
}

func (f *fakeNode) join(held *peer.Held) {
	f.t.Helper()
	s, err := f.c.join(peer.Hello{V: peer.Version, Index: f.index, Incarnation: f.incarnation, Address: "host:1", Held: held}, start)
	if err != nil {
		f.t.Fatal(err)
	}
	f.s = s
}

// load takes the assignment and reports every split with the given hash prefix, then Loaded.
func (f *fakeNode) load(hash string) {
	f.t.Helper()
	a := f.assignment()
	var done []peer.SplitDone
	for i := range a.Splits {
		done = append(done, peer.SplitDone{Split: a.First + i, Rows: 10, Bytes: 80, Hash: fmt.Sprint(hash, a.First+i)})
	}
	f.send(peer.ToHead{Progress: &peer.Progress{Plan: a.Plan, Done: done}})
	rows := int64(10 * len(done))
	f.send(peer.ToHead{Loaded: &peer.Loaded{Plan: a.Plan, Rows: rows, Bytes: rows * 8, ColumnBytes: []int64{rows * 8}}})
}

func (f *fakeNode) assignment() *peer.Assign {
	f.t.Helper()
	select {
	case m := <-f.s.out:
		if m.Assign != nil {
			return m.Assign
		}
		f.t.Fatalf("node %d was told %+v, want an assignment", f.index, m)
	default:
		f.t.Fatalf("node %d was not told anything, want an assignment", f.index)
	}
	return nil
}

func (f *fakeNode) send(m peer.ToHead) {
	f.t.Helper()
	if err := f.c.apply(f.s, m, start); err != nil {
		f.t.Fatal(err)
	}
}

func expectState(t *testing.T, c *cluster, want protocol.State, reason string) {
	t.Helper()
	s := c.status("table")
	if s.State != want || !strings.Contains(s.Reason, reason) {
		t.Fatalf("state %s (%s), want %s with %q", s.State, s.Reason, want, reason)
	}
	if _, err := c.view(); (err == nil) != (want == protocol.StateReady) || (err != nil && status.Code(err) != codes.Unavailable) {
		t.Fatalf("in state %s an answer ends in %v", want, err)
	}
}

// readyCluster is a cluster whose nodes have all loaded, with hashes that begin with "h".
func readyCluster(t *testing.T, nodes, splits int) (*cluster, []*fakeNode) {
	t.Helper()
	c := newCluster(t, nodes)
	c.setPlan(splits10(nodes, splits), nil, start)
	var all []*fakeNode
	for i := range nodes {
		n := &fakeNode{t: t, c: c, index: i, incarnation: fmt.Sprint("first", i)}
		n.join(nil)
		n.load("h")
		all = append(all, n)
	}
	expectState(t, c, protocol.StateReady, "ready")
	for _, n := range all {
		if m := <-n.s.out; m.Ready == nil || m.Ready.Plan != c.data.plan.fingerprint {
			t.Errorf("node %d was told %+v, want that the cache is ready", n.index, m)
		}
	}
	return c, all
}

func TestLifeOfACache(t *testing.T) {
	c := newCluster(t, 2)
	expectState(t, c, protocol.StatePlanning, "planning")
	c.planning(3, 4, start)
	expectState(t, c, protocol.StatePlanning, "3/4 files")
	a := &fakeNode{t: t, c: c, index: 0, incarnation: "a"}
	a.join(nil) // before there is a plan
	c.setPlan(splits10(2, 4), nil, start)
	expectState(t, c, protocol.StateLoading, "loading 0% (0/4 splits); waiting for data node 1 to join")
	a.load("h")
	expectState(t, c, protocol.StateLoading, "loading 50% (2/4 splits); waiting for data node 1 to join")
	b := &fakeNode{t: t, c: c, index: 1, incarnation: "b"}
	b.join(nil)
	expectState(t, c, protocol.StateLoading, "loading 50% (2/4 splits)")
	b.load("h")
	expectState(t, c, protocol.StateReady, "ready")
	v, err := c.view()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]assign.Bounds{{0, 20}, {20, 40}}, v.bounds); diff != "" || v.rows != 40 {
		t.Errorf("%d rows, bounds %s", v.rows, diff)
	}
}

func TestNodesWithoutSplitsAreReady(t *testing.T) {
	c, _ := readyCluster(t, 3, 1)
	v, err := c.view()
	if err != nil {
		t.Fatal(err)
	}
	if v.rows != 10 || len(v.bounds) != 3 {
		t.Errorf("%d rows on %v", v.rows, v.bounds)
	}
	readyCluster(t, 2, 0) // nor does an empty table keep anybody waiting
}

func TestNodeRestarts(t *testing.T) {
	c, nodes := readyCluster(t, 2, 4)
	c.leave(nodes[1].s, "connection lost")
	expectState(t, c, protocol.StateDegraded, "data node 1 (host:1) is gone: connection lost")
	again := &fakeNode{t: t, c: c, index: 1, incarnation: "second"}
	again.join(nil)
	expectState(t, c, protocol.StateDegraded, "data node 1 restarted, reloading (0/2 splits)")
	again.load("h")
	expectState(t, c, protocol.StateReady, "ready")
	v, err := c.view()
	if err != nil {
		t.Fatal(err)
	}
	if v.members[1].incarnation != "second" || v.members[1].restarts != 1 {
		t.Errorf("node 1 is %+v", v.members[1])
	}
}

func TestNodeThatHoldsItsPartJoinsAgain(t *testing.T) {
	c, nodes := readyCluster(t, 2, 4)
	c.leave(nodes[0].s, "connection lost")
	nodes[0].join(&peer.Held{Plan: c.data.plan.fingerprint, Request: "q", Ready: true})
	nodes[0].load("h") // what a node does that keeps its part: it reports all of it anew
	expectState(t, c, protocol.StateReady, "ready")
	if r := c.status("").Nodes[0].Restarts; r != 0 {
		t.Errorf("%d restarts counted for a node that only lost its connection", r)
	}
}

func TestOtherRowsAfterARestartFail(t *testing.T) {
	c, nodes := readyCluster(t, 1, 2)
	c.leave(nodes[0].s, "killed")
	again := &fakeNode{t: t, c: c, index: 0, incarnation: "second"}
	again.join(nil)
	a := again.assignment()
	again.send(peer.ToHead{Progress: &peer.Progress{Plan: a.Plan, Done: []peer.SplitDone{{Split: 0, Rows: 10, Hash: "other"}}}})
	expectState(t, c, protocol.StateFailed, "f0 row group 0 holds other rows")
	m := <-again.s.out
	if m.Abort == nil || m.Abort.Final {
		t.Errorf("the node was told %+v, want to give up", m)
	}
}

func TestMissingRowsFail(t *testing.T) {
	c := newCluster(t, 1)
	c.setPlan(splits10(1, 1), nil, start)
	n := &fakeNode{t: t, c: c, incarnation: "a"}
	n.join(nil)
	a := n.assignment()
	n.send(peer.ToHead{Progress: &peer.Progress{Plan: a.Plan, Done: []peer.SplitDone{{Split: 0, Rows: 9, Hash: "x"}}}})
	expectState(t, c, protocol.StateFailed, "has 10 rows, but 9 were loaded")
}

func TestLoadErrorFailsTheCache(t *testing.T) {
	c, nodes := readyCluster(t, 2, 4)
	nodes[1].send(peer.ToHead{Failed: &peer.Failed{Plan: c.data.plan.fingerprint, Reason: "f3 is gone"}})
	expectState(t, c, protocol.StateFailed, "data node 1 (host:1): f3 is gone")
	late := &fakeNode{t: t, c: c, index: 0, incarnation: "x"}
	late.join(&peer.Held{Plan: c.data.plan.fingerprint, Request: "q", Ready: true})
	if m := <-late.s.out; m.Abort == nil || m.Abort.Final || m.Abort.Reason != "data node 1 (host:1): f3 is gone" {
		t.Errorf("a node that joins a failed cache is told %+v, want to give up, and why", m)
	}
}

func TestPlanOfAFailedCacheIsNotDealt(t *testing.T) {
	c := newCluster(t, 1)
	n := &fakeNode{t: t, c: c, incarnation: "a"}
	n.join(nil)
	c.failLocked("too late")
	c.setPlan(splits10(1, 1), nil, start)
	if m := <-n.s.out; m.Abort == nil {
		t.Errorf("the node was told %+v first, want to give up", m)
	}
	select {
	case m := <-n.s.out:
		t.Errorf("then the node was told %+v", m)
	default:
	}
	expectState(t, c, protocol.StateFailed, "too late")
}

func TestSilentNodeIsLost(t *testing.T) {
	c, _ := readyCluster(t, 2, 2)
	c.tick(start.Add(9 * time.Second))
	expectState(t, c, protocol.StateReady, "ready")
	c.tick(start.Add(11 * time.Second))
	expectState(t, c, protocol.StateDegraded, "silent for more than 10s")
}

func TestNodesThatNeverCome(t *testing.T) {
	c := newCluster(t, 3)
	c.setPlan(splits10(3, 3), nil, start)
	(&fakeNode{t: t, c: c, index: 1, incarnation: "b"}).join(nil)
	c.tick(start.Add(59 * time.Second))
	expectState(t, c, protocol.StateLoading, "waiting for data node 0, 1, 2") // node 1 has fallen silent
	c.tick(start.Add(61 * time.Second))
	expectState(t, c, protocol.StateFailed, "1 of 3 data nodes joined within 1m0s; missing: 0, 2")
}

func TestSecondProcessTakesThePlace(t *testing.T) {
	c, nodes := readyCluster(t, 1, 1)
	other := &fakeNode{t: t, c: c, index: 0, incarnation: "other"}
	other.join(nil)
	m := <-nodes[0].s.out
	if m.Abort == nil || !m.Abort.Final {
		t.Errorf("the first process was told %+v, want to end", m)
	}
	select {
	case <-nodes[0].s.closed:
	default:
		t.Error("the first process' session is still open")
	}
	if err := c.apply(nodes[0].s, peer.ToHead{Progress: &peer.Progress{}}, start); err == nil {
		t.Error("the first process still reports")
	}
	c.leave(nodes[0].s, "late") // must not take the second one's place away
	other.load("h")
	expectState(t, c, protocol.StateReady, "ready")
}

// recalled asserts that the node was asked for the record of its plan.
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

// nothing asserts that the node was told nothing.
func (f *fakeNode) nothing() {
	f.t.Helper()
	select {
	case m := <-f.s.out:
		f.t.Fatalf("node %d was told %+v, want nothing", f.index, m)
	default:
	}
}

// TestHeldPlanReplacesAnUnservedOne: a new head has planned a newer snapshot, and one node has loaded its part of that;
// another one brings the plan that clients have seen.
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
	expectState(t, c, protocol.StateFailed, "f1 row group 0 holds other rows") // the hashes came back with the plan
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

// TestPlanOfOwnComesDuringARecall: it is not given to the node that is asked what it holds.
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

// TestTroubleIsToldAndBounded: what holds a first load up is in the reason, and ends it after the load timeout; a cache
// that was Ready waits as long as it takes.
func TestTroubleIsToldAndBounded(t *testing.T) {
	c := newCluster(t, 1)
	c.planningTrouble("catalog answered 503")
	expectState(t, c, protocol.StatePlanning, "planning: catalog answered 503")
	c.setPlan(splits10(1, 2), nil, start)
	n := &fakeNode{t: t, c: c, incarnation: "a"}
	n.join(nil)
	n.send(peer.ToHead{Progress: &peer.Progress{Plan: "plan-1-2", Trouble: "f0: 503"}})
	expectState(t, c, protocol.StateLoading, "loading 0% (0/2 splits); data node 0: f0: 503")
	later := start.Add(11 * time.Minute)
	if err := c.apply(n.s, peer.ToHead{Progress: &peer.Progress{Plan: "plan-1-2", Trouble: "f0: 503"}}, later); err != nil {
		t.Fatal(err)
	}
	c.tick(later)
	expectState(t, c, protocol.StateFailed, "no progress for 10m0s: data node 0: f0: 503")

	ready, nodes := readyCluster(t, 1, 2)
	ready.leave(nodes[0].s, "killed")
	again := &fakeNode{t: t, c: ready, incarnation: "b"}
	again.join(nil)
	if !again.assignment().Ready {
		t.Error("a node that reloads is not told so")
	}
	if err := ready.apply(again.s, peer.ToHead{Progress: &peer.Progress{Plan: "plan-1-2", Trouble: "f0: 503"}}, later); err != nil {
		t.Fatal(err)
	}
	ready.tick(later)
	expectState(t, ready, protocol.StateDegraded, "reloading (0/2 splits): f0: 503")
}

// TestRecordHoldsThePlan: what a node gives back makes the same plan, and again with another number of nodes.
func TestRecordHoldsThePlan(t *testing.T) {
	h := &Head{cfg: Config{Nodes: 2, Source: &iceberg.Source{Selection: iceberg.Selection{Filter: "id > 1"}}}}
	from := splits10(2, 4)
	pin, err := json.Marshal(iceberg.Pin{UUID: "u", SnapshotID: 7})
	if err != nil {
		t.Fatal(err)
	}
	from.Version.Pin, from.Identity = pin, source.Identity{UUID: "u", Snapshot: 7, Filter: "id > 1"}
	p, err := h.newPlan(&from.Plan)
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
	again, err := h.planOf(r)
	if err != nil {
		t.Fatal(err)
	}
	if again.fingerprint != p.fingerprint || !again.Schema.Equal(p.Schema) || again.dataset != p.dataset || !cmp.Equal(done, r.Done) {
		t.Errorf("got %+v with %v, want %+v with %v", again, r.Done, p, done)
	}
	h.cfg.Nodes = 3
	if other, err := h.planOf(r); err != nil || len(other.runs) != 3 || other.dataset != p.dataset || other.fingerprint == p.fingerprint {
		t.Errorf("for three nodes: %+v, %v", other, err)
	}
	if _, err := decodeRecord(encoded[:len(encoded)/2]); err == nil {
		t.Error("half a record was read")
	}
}

func TestRefusedHellos(t *testing.T) {
	tests := []struct {
		name string
		in   peer.Hello
		code codes.Code
	}{
		{"another protocol", peer.Hello{V: 99, Incarnation: "x", Address: "a"}, codes.FailedPrecondition},
		{"index below", peer.Hello{V: 1, Index: -1, Incarnation: "x", Address: "a"}, codes.InvalidArgument},
		{"index above", peer.Hello{V: 1, Index: 2, Incarnation: "x", Address: "a"}, codes.InvalidArgument},
		{"no address", peer.Hello{V: 1, Incarnation: "x"}, codes.InvalidArgument},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := newCluster(t, 2).join(tt.in, start); status.Code(err) != tt.code {
				t.Errorf("%v, want %s", err, tt.code)
			}
		})
	}
}

func TestStopRefusesAll(t *testing.T) {
	c, nodes := readyCluster(t, 1, 1)
	c.stop()
	expectState(t, c, protocol.StateDegraded, "stopping")
	<-nodes[0].s.closed
	if _, err := c.join(peer.Hello{V: 1, Incarnation: "x", Address: "a"}, start); status.Code(err) != codes.Unavailable {
		t.Errorf("a stopping head admits nodes: %v", err)
	}
}

// FuzzNodeMessages feeds the head whatever a broken node may say.
func FuzzNodeMessages(f *testing.F) {
	f.Add([]byte(`{"v":1,"index":0,"incarnation":"i","address":"a"}`), []byte(`{"progress":{"plan":"plan-1-4","done":[{"split":0,"rows":10,"hash":"h"}]}}`))
	f.Add([]byte(`{"v":1,"index":0,"incarnation":"i","address":"a","held":{"plan":"p","request":"q","ready":true}}`), []byte(`{"loaded":{"plan":"plan-1-4","rows":0,"column_bytes":[1]}}`))
	f.Add([]byte(`{"v":1,"index":0,"incarnation":"i","address":"a"}`), []byte(`{"loaded":{"plan":"plan-1-4","rows":0,"column_bytes":[0]}}`))
	f.Add([]byte(`{"index":-1}`), []byte(`{"progress":{"plan":"plan-1-4","done":[{"split":-9,"rows":-1}]}}`))
	f.Add([]byte(`{}`), []byte(`{"failed":{"reason":""},"leaving":{}}`))
	f.Fuzz(func(t *testing.T, hello, message []byte) {
		c := newCluster(t, 1)
		c.setPlan(splits10(1, 4), nil, start)
		h, err := peer.Decode[peer.Hello](hello)
		if err != nil {
			return
		}
		s, err := c.join(h, start)
		if err != nil {
			return
		}
		m, err := peer.Decode[peer.ToHead](message)
		if err != nil {
			return
		}
		_ = c.apply(s, m, start) // an error ends the session; a panic would end the head
		state := c.status("")
		if state.State == protocol.StateReady { // that takes a report of the splits and one that all are loaded
			t.Errorf("one message made the cache ready: %s %s", hello, message)
		}
	})
}
