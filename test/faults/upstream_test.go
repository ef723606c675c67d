// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/s3test"
)

// The tests of this file cover failures that Kubeflow Trainer 2.3.0's data cache did not report.

func TestDamagedFileFailsTheCache(t *testing.T) {
	truncate := func(l *lake) { l.replace(1, l.data(1)[:len(l.data(1))*2/3]) }
	empty := func(l *lake) { l.replace(1, nil) }
	remove := func(l *lake) { l.remove(1) }
	deny := func(l *lake) { l.s3.Inject(s3test.Match{Key: l.files[1]}, s3test.Deny()) }
	const size, gone, planned, loaded = "truncated or replaced", "not found", "plan: ", "data node "
	tests := []struct {
		name   string
		make   func(*testing.T) *lake
		damage func(*lake)
		nodes  int    // number of nodes to load on; 0: the file is damaged before the plan
		when   string // start of the reason, which depends on the stage that noticed
		reason string
	}{
		{"truncated on disk before the plan", disk, truncate, 0, planned, size},
		{"truncated on disk before the load", disk, truncate, 2, loaded, size},
		{"truncated on S3 before the load", bucketful, truncate, 2, loaded, size},
		{"missing on disk before the plan", disk, remove, 0, planned, gone},
		{"missing on disk before the load", disk, remove, 2, loaded, gone},
		{"missing on S3 before the plan", bucketful, remove, 0, planned, gone},
		{"missing on S3 before the load", bucketful, remove, 2, loaded, gone},
		{"emptied on disk before the load", disk, empty, 2, loaded, size},
		{"emptied on S3 before the plan", bucketful, empty, 0, planned, size},
		{"denied on S3 before the load", bucketful, deny, 2, loaded, "AccessDenied"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := test.make(t)
			c := newCluster(t, l, max(test.nodes, 1))
			if test.nodes == 0 {
				test.damage(l)
				c.startHead()
			} else {
				c.startHead()
				c.awaitPlan()
				test.damage(l)
			}
			for i := range c.nodes {
				c.startNode(i)
			}
			failedWith(c, l.name(1), test.when, test.reason)
		})
	}
}

func disk(t *testing.T) *lake      { return onDisk(t, 3, 50, 20) }
func bucketful(t *testing.T) *lake { return onS3(t, 3, 50, 20) }

// failedWith asserts that the cache ends as Failed with all the reasons, that clients get them, and that every process keeps running
// and has released its memory.
func failedWith(c *cluster, reasons ...string) {
	c.t.Helper()
	s := c.await(protocol.StateFailed, reasons[0])
	for _, reason := range reasons {
		if !strings.Contains(s.Reason, reason) {
			c.t.Errorf("the reason %q lacks %q", s.Reason, reason)
		}
		c.refused(reason)
	}
	if ok, text := c.head.ready(); ok {
		c.t.Errorf("a failed head is ready: %s", text)
	}
	for i, n := range c.nodes {
		c.awaitNode(i, "Failed", reasons[0])
		if ok, text := n.ready(); ok {
			c.t.Errorf("data node %d of a failed cache is ready: %s", i, text)
		}
		deadline.Eventually(c.t, func() error {
			used := n.metric("datacache_memory_used_bytes") - n.metric("datacache_memory_clients_bytes")
			if used != 0 {
				return fmt.Errorf("data node %d still has %.0f bytes beside those of clients", i, used)
			}
			return nil
		})
	}
	c.head.alive()
}

func TestStalledNodeIsWaitedFor(t *testing.T) {
	t.Parallel()
	l := onS3(t, 4, 50, 50)
	c := newCluster(t, l, 2)
	c.headArgs = frozenIsLost
	c.startHead()
	c.awaitPlan()
	stall := l.s3.Inject(s3test.Match{Key: l.files[3]}, s3test.Stall(-1))
	c.startNode(0)
	c.startNode(1)
	c.awaitNode(0, "Ready", "")
	c.awaitNode(1, "Loading", "")

	c.nodes[1].freeze()
	stall.Release()
	c.await(protocol.StateLoading, "data node 1")
	if ok, text := c.head.ready(); ok {
		t.Fatalf("ready without a node's rows: %s", text)
	}
	c.refused("loading")

	c.nodes[1].signal(syscall.SIGCONT)
	c.await(protocol.StateReady)
	c.servesAll(2)

	c.nodes[0].freeze()
	c.await(protocol.StateDegraded, "data node 0")
	c.refused("data node 0")
	c.nodes[0].signal(syscall.SIGCONT)
	c.await(protocol.StateReady)
	c.servesAll(3)
}

func TestLateNodeIsWaitedFor(t *testing.T) {
	t.Parallel()
	c := newCluster(t, onS3(t, 2, 50, 50), 2)
	c.startHead()
	c.startNode(0)
	c.awaitNode(0, "Ready", "")
	deadline.Eventually(t, func() error { // the head hears of the rows after the node has them
		if s := c.await(protocol.StateLoading, "waiting for data node 1"); s.Rows != 50 {
			return fmt.Errorf("%d rows without data node 1, want 50", s.Rows)
		}
		return nil
	})
	c.refused("data node 1")
	c.startNode(1)
	c.await(protocol.StateReady)
	c.servesAll(1)
}

// TestOrderStays reads the same table through caches of 1, 2 and 3 nodes, twice each and after a restart: the order must be the same.
func TestOrderStays(t *testing.T) {
	t.Parallel()
	l := onS3(t, 5, 40, 16)
	e := epoch.Epoch{Seed: 11, Number: 3, Shuffle: true, Clump: 1, GlobalBatch: 16, Tail: "keep"}
	var first []int64
	same := func(c *cluster, what string) {
		t.Helper()
		c.servesAll(3)
		got, err := c.wholeEpoch(deadline.Context(t), e, epoch.Share{Rank: 1, World: 2, Workers: 1})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if first == nil {
			first = got
		}
		if diff := cmp.Diff(first, got); diff != "" || len(got) != 100 {
			t.Fatalf("%s: %d rows of the epoch (-first +now):\n%s", what, len(got), diff)
		}
	}
	for nodes := 1; nodes <= 3; nodes++ {
		c := running(t, l, nodes)
		same(c, fmt.Sprintf("%d nodes", nodes))
		same(c, fmt.Sprintf("%d nodes, again", nodes))
		if nodes == 2 {
			for _, p := range append(c.nodes, c.head) {
				p.kill()
			}
			c.startAll()
			c.await(protocol.StateReady)
			same(c, "after a restart of all")
		}
	}
}

func TestNineRowsOverEightRanks(t *testing.T) {
	t.Parallel()
	c := running(t, onS3(t, 2, 4, 3).plus(1), 2)
	c.servesAll(8)
	c.servesAll(9)
	c.servesAll(100)
	var joined []int64
	for rank := range uint64(8) {
		ids, err := c.wholeEpoch(deadline.Context(t), epoch.Epoch{GlobalBatch: 8, Tail: "keep", Clump: 1}, epoch.Share{Rank: rank, World: 8, Workers: 1})
		if err != nil {
			t.Fatalf("rank %d of 8: %v", rank, err)
		}
		joined = append(joined, ids...)
	}
	if len(joined) != 9 {
		t.Errorf("8 ranks have %d rows of an epoch, want 9", len(joined))
	}
}

func TestNodeWithoutFilesIsReady(t *testing.T) {
	t.Parallel()
	c := running(t, onS3(t, 1, 30, 100), 3)
	empty := 0
	for i, n := range c.nodes {
		s := c.awaitNode(i, "Ready", "")
		if ok, text := n.ready(); !ok {
			t.Errorf("data node %d is not ready: %s", i, text)
		}
		if s.Splits.Total == 0 {
			empty++
		}
	}
	if empty != 2 {
		t.Fatalf("%d of 3 nodes have no split, want 2", empty)
	}
	c.servesAll(4)
}

func TestTableWithoutRowsIsReady(t *testing.T) {
	t.Parallel()
	c := running(t, onS3(t, 0, 0, 1), 2)
	c.servesAll(2)
	info, err := c.info(deadline.Context(t), shardOf(0, 1))
	if err != nil || len(info.GetEndpoint()) != 0 || info.GetTotalRecords() != 0 {
		t.Errorf("answer %v, %v, want no endpoint and no error", info, err)
	}
}

func TestUnimplementedCallsAreRefused(t *testing.T) {
	t.Parallel()
	c := running(t, onS3(t, 2, 20, 10), 1)
	type call func(flight.FlightServiceClient) error
	first := func(s grpc.ClientStream, err error) error {
		if err != nil {
			return err
		}
		return s.RecvMsg(&flight.FlightData{})
	}
	ctx := deadline.Context(t)
	d := shardOf(0, 1)
	both := map[string]call{
		"Handshake":      func(f flight.FlightServiceClient) error { s, err := f.Handshake(ctx); return first(s, err) },
		"PollFlightInfo": func(f flight.FlightServiceClient) error { _, err := f.PollFlightInfo(ctx, d); return err },
		"DoAction unknown": func(f flight.FlightServiceClient) error {
			s, err := f.DoAction(ctx, &flight.Action{Type: "drop"})
			return first(s, err)
		},
	}
	tests := []struct {
		name, address string
		process       *process
		calls         map[string]call
	}{
		{"head", c.headAddr, c.head, map[string]call{
			"DoGet": func(f flight.FlightServiceClient) error {
				s, err := f.DoGet(ctx, &flight.Ticket{})
				return first(s, err)
			},
			"DoExchange": func(f flight.FlightServiceClient) error { s, err := f.DoExchange(ctx); return first(s, err) },
		}},
		{"node", c.nodeAddrs[0], c.nodes[0], map[string]call{
			"GetFlightInfo": func(f flight.FlightServiceClient) error { _, err := f.GetFlightInfo(ctx, d); return err },
			"GetSchema":     func(f flight.FlightServiceClient) error { _, err := f.GetSchema(ctx, d); return err },
			"ListFlights": func(f flight.FlightServiceClient) error {
				s, err := f.ListFlights(ctx, &flight.Criteria{})
				return first(s, err)
			},
		}},
	}
	for _, test := range tests {
		f := service(ctx, t, test.address)
		for _, calls := range []map[string]call{both, test.calls} {
			for name, call := range calls {
				if err := call(f); status.Code(err) != codes.Unimplemented {
					t.Errorf("%s of %s: %v, want UNIMPLEMENTED", name, test.name, err)
				}
			}
		}
		conn, err := dial(ctx, test.address)
		if err != nil {
			t.Fatal(err)
		}
		err = conn.Invoke(ctx, "/arrow.flight.protocol.FlightService/Nonsense", &emptypb.Empty{}, &emptypb.Empty{})
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("a method that is not Flight's, of %s: %v, want UNIMPLEMENTED", test.name, err)
		}
		test.process.alive()
	}
	c.servesAll(1)
}

// TestDeadNodeIsNotHandedOut queries the head continuously while a node is killed and restarted.
func TestDeadNodeIsNotHandedOut(t *testing.T) {
	t.Parallel()
	c := running(t, onS3(t, 2, 50, 25), 2)
	ctx := deadline.Context(t)
	f := service(ctx, t, c.headAddr)
	old := c.awaitNode(1, "Ready", "").Incarnation
	c.nodes[1].kill()
	deadline.Eventually(t, func() error {
		if _, err := f.GetFlightInfo(ctx, shardOf(0, 1)); status.Code(err) != codes.Unavailable {
			return fmt.Errorf("the head answers %s with a dead node", status.Code(err))
		}
		return nil
	})
	for range 200 {
		_, err := f.GetFlightInfo(ctx, shardOf(0, 1))
		wantStatus(t, err, codes.Unavailable, "data node 1 ("+c.nodeAddrs[1]+") is gone")
	}
	c.startNode(1)
	deadline.Eventually(t, func() error {
		info, err := f.GetFlightInfo(ctx, shardOf(0, 1))
		if err != nil {
			return err
		}
		for _, e := range info.GetEndpoint() {
			if _, err := c.open(ctx, e); err != nil {
				t.Fatalf("the head gave an address that does not serve: %v", err)
			}
		}
		return nil
	})
	if s := c.awaitNode(1, "Ready", ""); s.Incarnation == old {
		t.Error("the restarted node has the incarnation of the killed one")
	}
	c.servesAll(2)
}

// TestOldTicketIsRefused uses a ticket after the restart of the node that it is for.
func TestOldTicketIsRefused(t *testing.T) {
	t.Parallel()
	c := running(t, onS3(t, 2, 50, 25), 1)
	info, err := c.info(deadline.Context(t), shardOf(0, 1))
	if err != nil {
		t.Fatal(err)
	}
	c.nodes[0].kill()
	c.await(protocol.StateDegraded, "data node 0")
	c.startNode(0)
	c.await(protocol.StateReady)
	_, err = c.open(deadline.Context(t), info.GetEndpoint()[0])
	if code := status.Code(errors.Unwrap(err)); err == nil || !strings.Contains(err.Error(), "ask the head again") {
		t.Fatalf("the old ticket: %v (%s), want FAILED_PRECONDITION that says what to do", err, code)
	}
	c.servesAll(1)
}
