// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

func TestNodeToldToStopDrains(t *testing.T) {
	t.Parallel()
	c := running(t, big(t), 2)
	s := c.firstOfNode(0)
	c.nodes[0].signal(syscall.SIGTERM)
	c.await(protocol.StateDegraded, "data node stopped as told")
	c.refused("stopped as told")
	if ok, text := c.nodes[0].ready(); ok {
		t.Errorf("a stopping node is ready: %s", text)
	}
	ids, err := s.rest()
	if err != nil {
		t.Fatalf("the running stream broke after %d more rows: %v", len(ids), err)
	}
	if last := ids[len(ids)-1]; !slices.Equal(ids, between(last+1-int64(len(ids)), last+1)) || last != bigFiles*bigRows/2-1 {
		t.Errorf("the drained stream ended with row %d after %d rows", last, len(ids))
	}
	if code := c.nodes[0].exit(); code != 0 {
		t.Errorf("the drained node ended with %d", code)
	}
	c.startNode(0)
	c.await(protocol.StateReady)
	c.servesAll(1)
}

func TestNodeToldToStopCutsStreamsAfterTheGrace(t *testing.T) {
	t.Parallel()
	c := newCluster(t, big(t), 1)
	c.nodeArgs = []string{"--grace", "1s"}
	c.startAll()
	c.await(protocol.StateReady)
	s := c.firstOfNode(0)
	begin := time.Now()
	c.nodes[0].signal(syscall.SIGTERM)
	if code := c.nodes[0].exit(); code != 0 {
		t.Errorf("the node ended with %d", code)
	}
	if took := time.Since(begin); took < time.Second {
		t.Errorf("the node ended after %s, before the grace was over", took)
	}
	ids, err := s.rest()
	if code := status.Code(err); err == nil || code == codes.OK {
		t.Errorf("a cut stream ended cleanly after %d rows", len(ids))
	}
}

func TestHeadToldToStopDoesNotWaitForItsNodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, onS3(t, 2, 50, 25), 2)
	c.startAll()
	c.await(protocol.StateReady)
	c.head.signal(syscall.SIGTERM)
	if code := c.head.exit(); code != 0 {
		t.Errorf("the head ended with %d", code)
	}
	for i := range c.nodes {
		c.awaitNode(i, "Waiting", "loaded")
	}
	for i, n := range c.nodes {
		n.signal(syscall.SIGTERM)
		if code := n.exit(); code != 0 {
			t.Errorf("data node %d ended with %d", i, code)
		}
	}
}

// TestStopWhileLoading stops head and nodes in the middle of a load that would never finish.
func TestStopWhileLoading(t *testing.T) {
	t.Parallel()
	l := onS3(t, 4, 50, 25)
	c := planned(t, l, 2)
	c.stallAll()
	c.startNode(0)
	c.startNode(1)
	for i := range c.nodes {
		c.awaitNode(i, "Loading", "")
	}
	for _, p := range []*process{c.nodes[0], c.head, c.nodes[1]} {
		p.signal(syscall.SIGTERM)
		if code := p.exit(); code != 0 {
			t.Errorf("%s ended with %d", p.name, code)
		}
	}
}

func TestLocalStops(t *testing.T) {
	t.Parallel()
	l := onS3(t, 2, 50, 25)
	c := newCluster(t, l, 1)
	http := proctest.FreeAddress(t)
	c.head = start(t, "local", http, c.env("local"), "local", "--metadata", l.location, "--nodes", "2", "--listen", c.headAddr, "--http", http, "--grace", never)
	c.await(protocol.StateReady)
	c.head.logs("ready grpc://" + c.headAddr + " http://" + http)
	c.servesAll(3)
	c.head.signal(syscall.SIGTERM)
	if code := c.head.exit(); code != 0 {
		t.Errorf("local ended with %d", code)
	}
}
