// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kubeflow/datacache/cacheserver/node"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/proctest"
	"github.com/kubeflow/datacache/test/kit/s3test"
)

// cluster is a head and data nodes, each a process, whose addresses stay the same over restarts.
type cluster struct {
	t         *testing.T
	lake      *lake
	args      []string // of every process
	headArgs  []string
	nodeArgs  []string
	secret    string
	variables []string // environment of every process
	headAddr  string
	nodeAddrs []string
	httpAddrs []string // of the nodes
	head      *process
	nodes     []*process
}

// never is a time limit of a server that is longer than any test: a slow machine must not make the server reach it.
const never = "24h"

// frozenIsLost are the flags of a head that counts a data node as lost once it is silent for a while, such as a stopped process.
var frozenIsLost = []string{"--node-timeout", "10s"}

// newCluster reserves addresses; it starts nothing. The head counts a data node as lost when its connection ends, and not when it is silent.
func newCluster(t *testing.T, l *lake, nodes int) *cluster {
	t.Helper()
	c := &cluster{
		t: t, lake: l, headAddr: proctest.FreeAddress(t), nodes: make([]*process, nodes),
		args: []string{"--grace", never}, headArgs: []string{"--node-timeout", never},
	}
	for range nodes {
		c.nodeAddrs = append(c.nodeAddrs, proctest.FreeAddress(t))
		c.httpAddrs = append(c.httpAddrs, proctest.FreeAddress(t))
	}
	return c
}

// running starts everything and waits for Ready.
func running(t *testing.T, l *lake, nodes int) *cluster {
	t.Helper()
	c := newCluster(t, l, nodes)
	c.startAll()
	c.await(protocol.StateReady)
	return c
}

func (c *cluster) startAll() {
	c.t.Helper()
	c.startHead()
	for i := range c.nodes {
		c.startNode(i)
	}
}

// startHead starts the head, possibly again.
func (c *cluster) startHead(args ...string) {
	c.t.Helper()
	http := proctest.FreeAddress(c.t)
	c.head = start(c.t, "head", http, c.env("head"), slices.Concat(
		[]string{"head", "--metadata", c.lake.location, "--nodes", strconv.Itoa(len(c.nodes)), "--listen", c.headAddr, "--http", http},
		c.args, c.headArgs, args)...)
}

// startNode starts a data node at its own address, possibly again.
func (c *cluster) startNode(i int, args ...string) {
	c.t.Helper()
	c.nodes[i] = c.spawnNode(i, c.nodeAddrs[i], c.httpAddrs[i], args...)
}

func (c *cluster) spawnNode(i int, address, http string, args ...string) *process {
	c.t.Helper()
	name := fmt.Sprintf("node-%d", i)
	return start(c.t, name, http, c.env(name), slices.Concat(
		[]string{"node", "--head", c.headAddr, "--index", strconv.Itoa(i), "--listen", address, "--http", http},
		c.args, c.nodeArgs, args)...)
}

// env returns the variables with which a process accesses the objects; its name is its access key, so that the server's log shows
// which process sent a request.
func (c *cluster) env(name string) []string {
	env := append([]string{"CACHE_SECRET=" + c.secret}, c.variables...)
	if c.lake.s3 != nil {
		env = append(append(env, c.lake.s3.Env()...), "AWS_ACCESS_KEY_ID="+name)
	}
	return env
}

// planned starts a head without data nodes and waits until it has a plan: the test can then change files between plan and load.
func planned(t *testing.T, l *lake, nodes int) *cluster {
	t.Helper()
	c := newCluster(t, l, nodes)
	c.startHead()
	c.awaitPlan()
	return c
}

func (c *cluster) awaitPlan() {
	c.t.Helper()
	deadline.Eventually(c.t, func() error {
		s, err := statusOf[protocol.Status](c.head)
		if err == nil && s.Splits.Total == 0 {
			err = fmt.Errorf("not planned: %s: %s", s.State, s.Reason)
		}
		return err
	})
}

// await waits until the head reports the state with a reason that contains the given texts, and returns its status. Each start of a head has
// another address for its status, so it is that of the last one. It is Ready only with the last process that was started for each data node.
func (c *cluster) await(want protocol.State, reasons ...string) protocol.Status {
	c.t.Helper()
	c.head.alive()
	var last protocol.Status
	deadline.Eventually(c.t, func() (err error) {
		if last, err = statusOf[protocol.Status](c.head); err != nil {
			return err
		}
		if lacks := slices.ContainsFunc(reasons, func(r string) bool { return !strings.Contains(last.Reason, r) }); last.State != want || lacks {
			return fmt.Errorf("the head is %s: %q, want %s: %q", last.State, last.Reason, want, reasons)
		}
		if want != protocol.StateReady {
			return nil
		}
		return c.listedBy(last)
	})
	return last
}

// listedBy returns an error unless a head lists the processes of all data nodes.
func (c *cluster) listedBy(head protocol.Status) error {
	for i, p := range c.nodes {
		if p == nil {
			continue // not a process of its own
		}
		own, err := p.incarnation()
		if err != nil {
			return err
		}
		if listed := head.Nodes[i].Incarnation; listed != own {
			return fmt.Errorf("the head lists incarnation %s of data node %d, whose process has %s", listed, i, own)
		}
	}
	return nil
}

// awaitNode waits until a data node reports the state with a reason that contains the given text.
func (c *cluster) awaitNode(i int, want, reason string) node.Status {
	c.t.Helper()
	return c.nodes[i].awaitNode(want, reason)
}

// reads returns the keys of data files that a process read, identified by its access key.
func (c *cluster) reads(name string) []string {
	c.t.Helper()
	var keys []string
	for _, r := range c.lake.s3.Requests() {
		if r.AccessKeyID == name && r.Key != "" && strings.Contains(r.Key, "/data/") && !slices.Contains(keys, r.Key) {
			keys = append(keys, r.Key)
		}
	}
	slices.Sort(keys)
	return keys
}

// stallAll makes every read of a data file from now on block until the returned fault is released.
func (c *cluster) stallAll() *s3test.Injected {
	return c.lake.s3.Inject(s3test.Match{Key: "/data/"}, s3test.Stall(-1))
}
