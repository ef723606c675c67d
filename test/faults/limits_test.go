// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"strings"
	"testing"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// overhead is the memory that a process may use beyond its limit: for the binary, the Go heap, and the race detector's shadow memory.
func overhead() int64 {
	if raceEnabled {
		return 600 << 20
	}
	return 120 << 20
}

func TestMemoryLimitTooSmall(t *testing.T) {
	tests := []struct {
		name, limit string
		bytes       int64
		reasons     []string
	}{
		{"for the table", "9MB", 9e6, []string{"data node", "9000000", "raise --memory-limit"}},
		{"for one row group", "1MB", 1e6, []string{"no room to load even one row group", "1000000", "raise --memory-limit"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, big(t), 2)
			c.nodeArgs = []string{"--memory-limit", test.limit}
			c.startAll()
			failedWith(c, test.reasons...)
			for i, n := range c.nodes {
				if peak := n.metric("datacache_memory_peak_bytes"); peak > float64(test.bytes) {
					t.Errorf("data node %d reserved %.0f bytes, its limit is %d", i, peak, test.bytes)
				}
				if rss := n.memory("VmHWM"); rss > test.bytes+overhead() {
					t.Errorf("data node %d took %d MB, its limit is %s", i, rss>>20, test.limit)
				}
			}
		})
	}
}

// TestHeadMemoryTooSmall checks that a head rejects a plan that it would have no memory for, before it is killed for that.
func TestHeadMemoryTooSmall(t *testing.T) {
	t.Parallel()
	c := newCluster(t, onS3(t, 2, 50, 25), 10)
	c.variables = append(c.variables, "GOMEMLIMIT=2MiB")
	c.startAll()
	failedWith(c, "head memory: 2097152 bytes (2.0 MiB)", "for 10 data nodes takes 280", "HEAD_MEM", "head.resources.limits.memory")
}

func TestNodesThatNeverCome(t *testing.T) {
	t.Parallel()
	c := newCluster(t, onS3(t, 2, 50, 25), 3)
	c.headArgs = append(c.headArgs, "--join-timeout", "20s")
	c.startNode(1)
	c.awaitNode(1, "Waiting", "waiting for the head") // it joins when there is a head
	c.startHead()
	s := c.await(protocol.StateFailed, "1 of 3 data nodes joined within 20s; missing: 0, 2")
	c.refused("missing: 0, 2")
	if s.Nodes[1].Rows == 0 {
		t.Logf("data node 1 had loaded nothing: %+v", s.Nodes[1])
	}
	c.awaitNode(1, "Failed", "1 of 3 data nodes joined")
	c.head.alive()
}

func TestWrongSecretIsRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t, onS3(t, 2, 50, 25), 2)
	const right, wrong = "open-sesame", "open-barley"
	c.secret = right
	c.startHead()
	c.startNode(0)
	c.secret = wrong
	c.startNode(1)
	c.awaitNode(0, "Ready", "")
	c.awaitNode(1, "Waiting", "the node's cache secret differs from the head's")
	c.await(protocol.StateLoading, "waiting for data node 1")
	c.refused("data node 1")
	for _, p := range []*process{c.head, c.nodes[0], c.nodes[1]} {
		for _, secret := range []string{right, wrong} {
			if strings.Contains(p.output.String(), secret) {
				t.Errorf("the log of %s has the secret %q", p.name, secret)
			}
		}
	}
	c.nodes[1].kill()
	c.secret = right
	c.startNode(1)
	c.await(protocol.StateReady)
	c.servesAll(2)
}

func TestIndexOutOfRangeIsRefused(t *testing.T) {
	t.Parallel()
	c := running(t, onS3(t, 2, 50, 25), 2)
	stranger := c.spawnNode(2, proctest.FreeAddress(t), proctest.FreeAddress(t))
	stranger.logs("this cache has 2 data nodes, 0 to 1")
	c.await(protocol.StateReady)
	c.servesAll(2)
}
