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
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/source"
)

var start = time.Unix(1_800_000_000, 0)

// newCluster returns a cluster of n nodes with timeouts of 10 s of silence and 60 s to join.
func newCluster(t *testing.T, n int) *cluster {
	t.Helper()
	c := &cluster{
		limits: limits{started: start, silence: 10 * time.Second, join: time.Minute, load: 10 * time.Minute}, salt: []byte("k"),
		state: state{members: make(members, n), data: newDataset("q", n, start)},
	}
	c.puts = newDatasets(c, n, offheap.NewBudget(1<<30))
	return c
}

// splits10 returns a plan of n splits of 10 rows each over the nodes, with one int64 column.
func splits10(t *testing.T, nodes, n int) *tablePlan {
	t.Helper()
	planned := &source.Plan{
		Version:  source.Version{Pin: json.RawMessage(`{}`)},
		Identity: source.Identity{UUID: "u", Snapshot: 7},
		Schema:   arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil),
	}
	for i := range n {
		planned.Splits = append(planned.Splits, source.Split{File: fmt.Sprintf("f%d", i), Rows: 10, Bytes: 80, Exact: true})
	}
	p, err := newPlan(planned, nodes)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// hash10 is the hash of a split that a fake node reports.
func hash10(prefix string, split int) []byte {
	return []byte(fmt.Sprintf("%-*s", digestSize, fmt.Sprint(prefix, split)))[:digestSize]
}

// fakeNode simulates a data node.
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

// load receives the assignment and reports every split, with a hash that begins with the given prefix, then Loaded.
func (f *fakeNode) load(hash string) {
	f.t.Helper()
	a := f.assignment()
	var done []peer.SplitDone
	for i := range a.Splits {
		done = append(done, peer.SplitDone{Split: a.First + i, Rows: 10, Bytes: 80, Hash: hash10(hash, a.First+i)})
	}
	f.send(peer.ToHead{Progress: &peer.Progress{Plan: a.Plan, Done: done}})
	rows := int64(10 * len(done))
	f.send(peer.ToHead{Loaded: &peer.Loaded{Plan: a.Plan, Rows: rows, Bytes: rows * 8, ColumnBytes: []int64{rows * 8}, Fits: []byte{0}}})
}

func (f *fakeNode) assignment() *peer.Assign {
	f.t.Helper()
	m, told := f.next()
	if m.Assign == nil {
		f.t.Fatalf("node %d was told %+v (%t), want an assignment", f.index, m, told)
	}
	return m.Assign
}

// next returns the next message to the node, apart from parts to keep, if there is one.
func (f *fakeNode) next() (m peer.ToNode, told bool) {
	for {
		select {
		case m = <-f.s.out:
			if m.Keep == nil {
				return m, true
			}
		default:
			return peer.ToNode{}, false
		}
	}
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
	if _, err := c.view(false); (err == nil) != (want == protocol.StateReady) || (err != nil && status.Code(err) != codes.Unavailable) {
		t.Fatalf("in state %s an answer ends in %v", want, err)
	}
}

// readyCluster returns a cluster whose nodes have all loaded, with hashes that begin with "h".
func readyCluster(t *testing.T, nodes, splits int) (*cluster, []*fakeNode) {
	t.Helper()
	c := newCluster(t, nodes)
	c.setPlan(splits10(t, nodes, splits), start)
	var all []*fakeNode
	for i := range nodes {
		n := &fakeNode{t: t, c: c, index: i, incarnation: fmt.Sprint("first", i)}
		n.join(nil)
		n.load("h")
		all = append(all, n)
	}
	expectState(t, c, protocol.StateReady, "ready")
	for _, n := range all {
		if m, _ := n.next(); m.Ready == nil || m.Ready.Plan != c.data.plan.fingerprint {
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
	c.setPlan(splits10(t, 2, 4), start)
	expectState(t, c, protocol.StateLoading, "loading 0% (0/4 splits); waiting for data node 1 to join")
	a.load("h")
	expectState(t, c, protocol.StateLoading, "loading 50% (2/4 splits); waiting for data node 1 to join")
	b := &fakeNode{t: t, c: c, index: 1, incarnation: "b"}
	b.join(nil)
	expectState(t, c, protocol.StateLoading, "loading 50% (2/4 splits)")
	b.load("h")
	expectState(t, c, protocol.StateReady, "ready")
	v, err := c.view(false)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]assign.Bounds{{0, 20}, {20, 40}}, v.places.bounds); diff != "" || v.rows != 40 {
		t.Errorf("%d rows, bounds %s", v.rows, diff)
	}
}

func TestNodesWithoutSplitsAreReady(t *testing.T) {
	c, _ := readyCluster(t, 3, 1)
	v, err := c.view(false)
	if err != nil {
		t.Fatal(err)
	}
	if v.rows != 10 || len(v.places.bounds) != 3 {
		t.Errorf("%d rows on %v", v.rows, v.places.bounds)
	}
	readyCluster(t, 2, 0) // an empty table is ready at once as well
}

func TestNodeRestarts(t *testing.T) {
	c, nodes := readyCluster(t, 2, 4)
	c.leave(nodes[1].s, "connection lost", start)
	expectState(t, c, protocol.StateDegraded, "data node 1 (host:1) is gone since 2027-01-15T08:00:00Z: connection lost")
	again := &fakeNode{t: t, c: c, index: 1, incarnation: "second"}
	again.join(nil)
	expectState(t, c, protocol.StateDegraded, "data node 1 restarted, reloading (0/2 splits)")
	again.load("h")
	expectState(t, c, protocol.StateReady, "ready")
	v, err := c.view(false)
	if err != nil {
		t.Fatal(err)
	}
	if v.nodes[1].incarnation != "second" || c.members[1].restarts != 1 {
		t.Errorf("node 1 is %+v", v.nodes[1])
	}
}

func TestNodeThatHoldsItsPartJoinsAgain(t *testing.T) {
	c, nodes := readyCluster(t, 2, 4)
	c.leave(nodes[0].s, "connection lost", start)
	nodes[0].join(&peer.Held{Plan: c.data.plan.fingerprint, Request: "q", Ready: true})
	nodes[0].load("h") // a node that keeps its part reports all of it again
	expectState(t, c, protocol.StateReady, "ready")
	if r := c.status("").Nodes[0].Restarts; r != 0 {
		t.Errorf("%d restarts counted for a node that only lost its connection", r)
	}
}

func TestOtherRowsAfterARestartFail(t *testing.T) {
	c, nodes := readyCluster(t, 1, 2)
	c.leave(nodes[0].s, "killed", start)
	again := &fakeNode{t: t, c: c, index: 0, incarnation: "second"}
	again.join(nil)
	a := again.assignment()
	again.send(peer.ToHead{Progress: &peer.Progress{Plan: a.Plan, Done: []peer.SplitDone{{Split: 0, Rows: 10, Hash: hash10("other", 0)}}}})
	expectState(t, c, protocol.StateFailed, "f0 row group 0 holds other rows")
	m, _ := again.next()
	if m.Abort == nil || m.Abort.Final {
		t.Errorf("the node was told %+v, want to give up", m)
	}
}

func TestMissingRowsFail(t *testing.T) {
	c := newCluster(t, 1)
	c.setPlan(splits10(t, 1, 1), start)
	n := &fakeNode{t: t, c: c, incarnation: "a"}
	n.join(nil)
	a := n.assignment()
	n.send(peer.ToHead{Progress: &peer.Progress{Plan: a.Plan, Done: []peer.SplitDone{{Split: 0, Rows: 9, Hash: hash10("x", 0)}}}})
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
	c.setPlan(splits10(t, 1, 1), start)
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
	c.setPlan(splits10(t, 3, 3), start)
	(&fakeNode{t: t, c: c, index: 1, incarnation: "b"}).join(nil)
	c.tick(start.Add(59 * time.Second))
	expectState(t, c, protocol.StateLoading, "waiting for data node 0, 1, 2") // node 1 has become silent
	c.tick(start.Add(61 * time.Second))
	expectState(t, c, protocol.StateFailed, "1 of 3 data nodes joined within 1m0s; missing: 0, 2")
}

// TestTroubleIsToldAndBounded checks that the reason names what delays a first load, and that the load fails after the load timeout,
// while a cache that was Ready waits without a limit.
func TestTroubleIsToldAndBounded(t *testing.T) {
	c := newCluster(t, 1)
	c.planningTrouble("catalog answered 503")
	expectState(t, c, protocol.StatePlanning, "planning: catalog answered 503")
	c.setPlan(splits10(t, 1, 2), start)
	n := &fakeNode{t: t, c: c, incarnation: "a"}
	n.join(nil)
	n.send(peer.ToHead{Progress: &peer.Progress{Plan: c.data.plan.fingerprint, Trouble: "f0: 503"}})
	expectState(t, c, protocol.StateLoading, "loading 0% (0/2 splits); data node 0: f0: 503")
	later := start.Add(11 * time.Minute)
	if err := c.apply(n.s, peer.ToHead{Progress: &peer.Progress{Plan: c.data.plan.fingerprint, Trouble: "f0: 503"}}, later); err != nil {
		t.Fatal(err)
	}
	c.tick(later)
	expectState(t, c, protocol.StateFailed, "no progress for 10m0s: data node 0: f0: 503")

	ready, nodes := readyCluster(t, 1, 2)
	ready.leave(nodes[0].s, "killed", start)
	again := &fakeNode{t: t, c: ready, incarnation: "b"}
	again.join(nil)
	if !again.assignment().Ready {
		t.Error("a node that reloads is not told so")
	}
	if err := ready.apply(again.s, peer.ToHead{Progress: &peer.Progress{Plan: c.data.plan.fingerprint, Trouble: "f0: 503"}}, later); err != nil {
		t.Fatal(err)
	}
	ready.tick(later)
	expectState(t, ready, protocol.StateDegraded, "reloading (0/2 splits): f0: 503")
}
