// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

// asked returns the filters whose index the head has requested from the node since the last call.
func (f *fakeNode) asked() (filters []peer.Index) {
	for _, m := range f.told() {
		if m.Index != nil {
			filters = append(filters, *m.Index)
		}
	}
	return filters
}

// told returns the head's messages to the node since the last call.
func (f *fakeNode) told() (messages []peer.ToNode) {
	for {
		select {
		case m := <-f.s.out:
			messages = append(messages, m)
		default:
			return messages
		}
	}
}

// indexed answers the head's last request for an index.
func (f *fakeNode) indexed(rows int64, hash string, dropped ...string) {
	f.t.Helper()
	asked := f.asked()
	if len(asked) != 1 {
		f.t.Fatalf("node %d was asked for %d indexes, want 1", f.s.index, len(asked))
	}
	f.send(peer.ToHead{Indexed: &peer.Indexed{Plan: asked[0].Plan, ID: asked[0].ID, Rows: rows, Hash: hash, Dropped: dropped}})
}

// request asks for filtered rows, and returns a function that waits for the outcome. It must be called within a synctest bubble.
func request(t *testing.T, c *cluster, filter string) (wait func() ([]assign.Bounds, error)) {
	t.Helper()
	return requestBy(context.WithoutCancel(t.Context()), t, c, asked{text: filter, client: filter})
}

// requestBy is request by a client.
func requestBy(ctx context.Context, t *testing.T, c *cluster, by asked) (wait func() ([]assign.Bounds, error)) {
	t.Helper()
	v, err := c.view(false)
	if err != nil {
		t.Fatal(err)
	}
	var got *view
	done := make(chan error, 1)
	go func() {
		var err error
		got, _, err = c.filtered(ctx, v, by)
		done <- err
	}()
	synctest.Wait()
	return func() ([]assign.Bounds, error) {
		if err := <-done; err != nil {
			return nil, err
		}
		return got.places.bounds, nil
	}
}

func expectRows(t *testing.T, wait func() ([]assign.Bounds, error), want ...assign.Bounds) {
	t.Helper()
	got, err := wait()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("filtered rows (-want +got):\n%s", diff)
	}
}

func expectRefusal(t *testing.T, wait func() ([]assign.Bounds, error), code codes.Code, says string) {
	t.Helper()
	if _, err := wait(); status.Code(err) != code || !strings.Contains(err.Error(), says) {
		t.Errorf("ends in %v, want %s with %q", err, code, says)
	}
}

func TestAFilterWaitsForEveryNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, nodes := readyCluster(t, 2, 4)
		first, second := request(t, c, "id > 1"), request(t, c, "id > 1")
		nodes[0].indexed(3, "a")
		expectRefusal(t, first, codes.Unavailable, "indexing filter (1/2 nodes)")
		expectRefusal(t, second, codes.Unavailable, "indexing filter (1/2 nodes)")
		third := request(t, c, "id > 1")
		nodes[1].indexed(5, "b")
		expectRows(t, third, assign.Bounds{0, 3}, assign.Bounds{3, 8})
		expectRows(t, request(t, c, "id > 1"), assign.Bounds{0, 3}, assign.Bounds{3, 8})
		if again := append(nodes[0].asked(), nodes[1].asked()...); len(again) > 0 {
			t.Errorf("an indexed filter was asked for again: %v", again)
		}
	})
}

func TestANodeWithoutMemoryRefusesAFilterOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, nodes := readyCluster(t, 1, 2)
		first := request(t, c, "id > 1")
		asked := nodes[0].asked()[0]
		nodes[0].send(peer.ToHead{Indexed: &peer.Indexed{Plan: asked.Plan, ID: asked.ID, Refusal: "needed 9 bytes, had 8", NoRoom: true}})
		expectRefusal(t, first, codes.ResourceExhausted, "needed 9 bytes, had 8")
		second := request(t, c, "id > 1")
		nodes[0].indexed(3, "a")
		expectRows(t, second, assign.Bounds{0, 3})
	})
}

func TestADroppedIndexIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, nodes := readyCluster(t, 1, 2)
		first := request(t, c, "id > 1")
		nodes[0].indexed(3, "a")
		expectRows(t, first, assign.Bounds{0, 3})
		other := request(t, c, "id > 2")
		nodes[0].indexed(2, "b", c.filters.held["id > 1"].id)
		expectRows(t, other, assign.Bounds{0, 2})
		again := request(t, c, "id > 1")
		nodes[0].indexed(3, "a")
		expectRows(t, again, assign.Bounds{0, 3})
	})
}

func TestARestartedNodeMustSelectTheSameRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, nodes := readyCluster(t, 1, 2)
		for filter, hash := range map[string]string{"id > 1": "a", "id > 2": "b"} {
			wait := request(t, c, filter)
			nodes[0].indexed(3, hash)
			expectRows(t, wait, assign.Bounds{0, 3})
		}
		nodes[0].incarnation = "second"
		nodes[0].join(nil)
		nodes[0].load("h")
		same := request(t, c, "id > 1")
		nodes[0].indexed(3, "a")
		expectRows(t, same, assign.Bounds{0, 3})
		other := request(t, c, "id > 2")
		nodes[0].indexed(3, "another")
		expectRefusal(t, other, codes.FailedPrecondition, "start a new cache")
		expectRefusal(t, request(t, c, "id > 2"), codes.FailedPrecondition, "start a new cache")
		expectRows(t, request(t, c, "id > 1"), assign.Bounds{0, 3})
		expectState(t, c, "Ready", "ready")
	})
}

func TestFiltersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, nodes := readyCluster(t, 1, 2)
		var waits []func() ([]assign.Bounds, error)
		large := func(filter string) func() ([]assign.Bounds, error) {
			return requestBy(t.Context(), t, c, asked{text: filter, client: filter, comparisons: smallComparisons + 1})
		}
		for i := range mostLarge {
			waits = append(waits, large(fmt.Sprint("id > ", i)))
		}
		expectRefusal(t, large("id > 999"), codes.ResourceExhausted, "evaluating 64 other large filters")
		waits = append(waits, request(t, c, "id > 998"))
		for _, asked := range nodes[0].asked() {
			nodes[0].send(peer.ToHead{Indexed: &peer.Indexed{Plan: asked.Plan, ID: asked.ID, Rows: 1, Hash: "a"}})
		}
		for _, wait := range waits {
			expectRows(t, wait, assign.Bounds{0, 1})
		}
		for i := range mostFilters + 9 {
			wait := request(t, c, fmt.Sprint("id < ", i))
			nodes[0].indexed(1, "a")
			expectRows(t, wait, assign.Bounds{0, 1})
		}
		if n := len(c.filters.held); n != mostFilters {
			t.Errorf("%d filters are remembered, want %d", n, mostFilters)
		}
	})
}

func TestTheLastClientCancelsAFilter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, nodes := readyCluster(t, 1, 2)
		ctx, cancel := context.WithCancel(t.Context())
		first, second := requestBy(ctx, t, c, asked{text: "id > 1"}), request(t, c, "id > 1")
		sent := nodes[0].asked()[0]
		cancel()
		expectRefusal(t, first, codes.Canceled, "")
		time.Sleep(leftPatience + 1) //nolint:forbidigo // the clock of synctest
		if c.tick(time.Now()); len(nodes[0].told()) > 0 {
			t.Error("the node is told something while another client waits")
		}
		expectRefusal(t, second, codes.Unavailable, "indexing filter (0/1 nodes)")
		if c.tick(time.Now().Add(lapsedPatience - time.Second)); len(nodes[0].told()) > 0 {
			t.Error("the node is told something before the client could ask again")
		}
		c.tick(time.Now().Add(lapsedPatience))
		want := []peer.ToNode{{Unindex: &peer.Unindex{Plan: sent.Plan, ID: sent.ID}}}
		if diff := cmp.Diff(want, nodes[0].told()); diff != "" {
			t.Errorf("the node is told (-want +got):\n%s", diff)
		}
		again := request(t, c, "id > 1")
		nodes[0].indexed(3, "a")
		expectRows(t, again, assign.Bounds{0, 3})
	})
}

func TestClientsOfOneAddressCannotHaveAllLargeFilters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, nodes := readyCluster(t, 1, 2)
		for i := range mostOfClient {
			requestBy(t.Context(), t, c, asked{text: fmt.Sprint("id > ", i), job: fmt.Sprint(i), client: "10.0.0.1", comparisons: smallComparisons + 1})
		}
		one := requestBy(t.Context(), t, c, asked{text: "id > 999", job: "another", client: "10.0.0.1", comparisons: smallComparisons + 1})
		expectRefusal(t, one, codes.ResourceExhausted, "evaluating 16 other large filters of clients at 10.0.0.1")
		nodes[0].asked()
		for _, by := range []asked{{text: "id > 999", client: "10.0.0.2", comparisons: smallComparisons + 1}, {text: "id > 1000", client: "10.0.0.1"}} {
			wait := requestBy(t.Context(), t, c, by)
			nodes[0].indexed(1, "a")
			expectRows(t, wait, assign.Bounds{0, 1})
		}
	})
}
