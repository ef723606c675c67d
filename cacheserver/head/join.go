// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

// join makes a node a member. If the plan that the node holds may replace the cluster's, the gatherer will recall it; otherwise the node
// gets its part of the cluster's plan, if there is one.
func (c *cluster) join(hello peer.Hello, now time.Time) (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.admits(hello); err != nil {
		return nil, err
	}
	s := c.members[hello.Index].join(hello, now)
	c.trace.joined(c.members)
	c.puts.catalog.Join(s.index)
	c.puts.changedLocked()
	c.data.reset(s.index)
	if c.data.wants(hello.Held) {
		c.data.nodes[s.index].recalled = originOf(hello.Held)
		wake(c.moved)
		return s, nil
	}
	c.welcomeLocked(s)
	wake(c.moved)
	c.checkLocked(now)
	return s, nil
}

// welcomeLocked sends a node that joined the reason why the cache failed, or its part of the plan.
func (c *cluster) welcomeLocked(s *session) {
	switch {
	case c.data.failure != "":
		s.tell(c.abort())
	case c.data.plan != nil:
		c.assignLocked(s)
	}
}

// admits returns why a node may not join.
func (c *state) admits(hello peer.Hello) error {
	switch {
	case c.stopping:
		return status.Error(codes.Unavailable, "the head is stopping")
	case hello.V != peer.Version:
		return status.Errorf(codes.FailedPrecondition, "the node speaks version %d of the peer protocol, the head %d; run the same release on both", hello.V, peer.Version)
	case hello.Index < 0 || hello.Index >= len(c.members):
		return status.Errorf(codes.InvalidArgument, "node index %d: this cache has %d data nodes, 0 to %d", hello.Index, len(c.members), len(c.members)-1)
	case hello.Incarnation == "" || hello.Address == "":
		return status.Error(codes.InvalidArgument, "hello without incarnation or address")
	}
	return nil
}

// rival returns the session of a process at another address that uses the index in hello, or nil. A process at the same address
// replaces one that must have ended.
func (c *cluster) rival(hello peer.Hello) *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	if hello.Index < 0 || hello.Index >= len(c.members) {
		return nil // join returns the error
	}
	m := &c.members[hello.Index]
	if m.session == nil || m.incarnation == hello.Incarnation || m.address == hello.Address {
		return nil
	}
	return m.session
}

// heardSince reports whether a session is still its node's current one, and whether the node has sent anything after t.
func (c *cluster) heardSince(s *session, t time.Time) (current, heard bool, address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := &c.members[s.index]
	return m.session == s, m.seen.After(t), m.address
}

// restore continues with a plan that data nodes hold, unless there is already one with an origin at least as high.
func (c *cluster) restore(p *tablePlan, of heldBy, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping {
		return
	}
	if of.from <= c.data.origin {
		c.welcomeHoldersLocked(of.plan)
		return
	}
	for i := range c.members {
		if c.holds(i, of.plan) {
			c.data.nodes[i].recalled = noPlan
		}
	}
	c.adoptLocked(p, of.from, now)
}

// forget continues without a plan that data nodes hold, since it can't be gathered.
func (c *cluster) forget(of heldBy, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.welcomeHoldersLocked(of.plan)
	c.checkLocked(now)
}

// welcomeHoldersLocked ends the gathering of a plan.
func (c *cluster) welcomeHoldersLocked(plan string) {
	for i := range c.members {
		if c.holds(i, plan) {
			c.data.nodes[i].recalled = noPlan
			c.welcomeLocked(c.members[i].session)
		}
	}
}

// setPlan adopts a plan that was made from the table, unless nodes have brought one.
func (c *cluster) setPlan(p *tablePlan, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.data.origin >= ownPlan || c.data.failure != "" {
		return
	}
	c.adoptLocked(p, ownPlan, now)
}

// adoptLocked makes p the cluster's plan and sends every node its part, except for nodes whose plan is being gathered.
func (c *cluster) adoptLocked(p *tablePlan, from origin, now time.Time) {
	if err := c.data.adopt(p, from, now); err != nil {
		c.failLocked(err.Error())
		return
	}
	c.filters.wake()
	c.filters = newFilters()
	for i := range c.members {
		if s := c.members[i].session; s != nil && c.data.nodes[i].recalled == noPlan {
			c.assignLocked(s)
		}
	}
}

func (c *cluster) assignLocked(s *session) {
	assign, keeps := c.data.assign(s.index, c.salt, s.held)
	assign.Trace = c.trace.parent
	s.held = nil
	s.tell(peer.ToNode{Assign: assign})
	for _, k := range keeps {
		s.tell(peer.ToNode{Keep: k})
	}
}
