// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

// cluster is all that the head knows of its data nodes. It does no I/O: streams tell it what happened, and
// it queues what nodes should be told in their sessions' outboxes.
type cluster struct {
	nodeTimeout  time.Duration
	joinTimeout  time.Duration
	loadTimeout  time.Duration
	started      time.Time
	salt         []byte        // of the key of tickets
	storeTrouble func() string // what reads of the object store are tried again, if any

	mu       sync.Mutex
	members  []member // by node
	data     dataset
	stopping bool
}

// planning notes how far planning is, in files.
func (c *cluster) planning(done, total int, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.data.footers, c.data.progressed = [2]int{done, total}, now
}

// planningTrouble notes why planning is tried again; the empty string ends that.
func (c *cluster) planningTrouble(trouble string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.data.trouble = trouble
}

// planningFailed notes that the table can't be planned. The cache fails with that once it is known that no node
// holds a plan.
func (c *cluster) planningFailed(reason string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.data.planFailure, c.data.trouble = reason, ""
	c.decideLocked(now)
}

// decideLocked fails a cache that can't be planned, unless a node may hold its plan: a living node that holds rows
// joins a restarted head within the time that it may be silent; three times that leaves room for its address to be
// looked up anew.
func (c *cluster) decideLocked(now time.Time) {
	if c.data.planFailure == "" || c.data.plan != nil || c.data.failure != "" {
		return
	}
	if len(c.unheardLocked()) > 0 && now.Sub(c.started) <= 3*c.nodeTimeout {
		return
	}
	c.failLocked(c.data.planFailure)
}

// unheardLocked are the nodes that may hold a plan which the cluster does not know.
func (c *cluster) unheardLocked() []string {
	var unheard []string
	for i := range c.members {
		if c.members[i].incarnation == "" || c.data.nodes[i].recalled != noPlan {
			unheard = append(unheard, fmt.Sprint(i))
		}
	}
	return unheard
}

// apply takes in one message of a node. An error ends the session.
func (c *cluster) apply(s *session, message peer.ToHead, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := &c.members[s.index]
	if m.session != s {
		return status.Error(codes.Aborted, "this session was replaced")
	}
	m.seen = now
	switch {
	case message.Progress != nil:
		return c.progressLocked(s.index, *message.Progress, now)
	case message.Loaded != nil:
		return c.loadedLocked(s.index, *message.Loaded, now)
	case message.Failed != nil:
		if c.data.plan != nil && message.Failed.Plan == c.data.plan.fingerprint {
			c.failLocked(fmt.Sprintf("data node %d (%s): %s", s.index, m.address, message.Failed.Reason))
		}
		return nil
	case message.Leaving != nil:
		return errors.New(message.Leaving.Reason)
	}
	return status.Error(codes.InvalidArgument, "a message that says nothing")
}

// progressLocked records loaded splits.
func (c *cluster) progressLocked(index int, p peer.Progress, now time.Time) error {
	if !c.data.loads(p.Plan) {
		return nil // of an earlier plan; the assignment, or the abort, is on its way
	}
	conflict, err := c.data.report(index, p, now)
	if conflict != "" {
		c.failLocked(fmt.Sprintf("data node %d (%s): %s", index, c.members[index].address, conflict))
	}
	return err
}

// loadedLocked notes that a node has loaded its part.
func (c *cluster) loadedLocked(index int, l peer.Loaded, now time.Time) error {
	if !c.data.loads(l.Plan) {
		return nil
	}
	if err := c.data.loaded(index, l, now); err != nil {
		return err
	}
	for i := range c.members {
		if c.nodeStateLocked(i) != protocol.NodeReady {
			return nil
		}
	}
	return c.completeLocked()
}

// completeLocked notes that every row is in memory. The first time the nodes are told, with the hashes of all splits:
// from now on clients may know these rows, and they must be found again whoever is lost.
func (c *cluster) completeLocked() error {
	if c.data.ready {
		return nil
	}
	encoded, err := encodeRecord(c.data.plan, c.data.splits)
	if err != nil {
		return err
	}
	c.data.ready, c.data.origin, c.data.record = true, readyPlan, encoded
	for i := range c.members {
		c.members[i].session.tell(peer.ToNode{Ready: &peer.Ready{Plan: c.data.plan.fingerprint, Record: encoded}})
	}
	return nil
}

// leave takes note that a node's session ended.
func (c *cluster) leave(s *session, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.members[s.index].session == s {
		c.loseLocked(s.index, reason)
	}
}

// loseLocked notes that a node is not connected any more.
func (c *cluster) loseLocked(index int, reason string) {
	m := &c.members[index]
	m.session, m.gone = nil, reason
	c.data.nodes[index].recalled = noPlan
}

// failLocked ends the cache and tells every node to free its part of the plan. Only the first reason is kept.
func (c *cluster) failLocked(reason string) {
	if c.data.failure != "" {
		return
	}
	c.data.failure = reason
	for i := range c.members {
		if s := c.members[i].session; s != nil && c.data.nodes[i].recalled == noPlan {
			c.abortLocked(s)
		}
	}
}

// abortLocked tells a node why the cache failed. The node stays, to tell whoever asks it, and frees the rows that it
// has of the plan that failed.
func (c *cluster) abortLocked(s *session) {
	abort := &peer.Abort{Reason: c.data.failure}
	if c.data.plan != nil {
		abort.Plan = c.data.plan.fingerprint
	}
	s.tell(peer.ToNode{Abort: abort})
}

// tick closes the sessions of nodes that fell silent, and gives up on a first load whose nodes never came or that
// store or catalog have held up for too long. A cache that was Ready is never given up: its rows are in use.
func (c *cluster) tick(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	missing := make([]string, 0, len(c.members))
	for i := range c.members {
		m := &c.members[i]
		if m.session != nil && now.Sub(m.seen) > c.nodeTimeout {
			m.session.close(status.Errorf(codes.DeadlineExceeded, "silent for %s", c.nodeTimeout))
			c.loseLocked(i, fmt.Sprintf("silent for more than %s", c.nodeTimeout))
		}
		if m.incarnation == "" {
			missing = append(missing, fmt.Sprint(i))
		}
	}
	c.decideLocked(now)
	if c.data.ready {
		return
	}
	if len(missing) > 0 && now.Sub(c.started) > c.joinTimeout {
		c.failLocked(fmt.Sprintf("%d of %d data nodes joined within %s; missing: %s. Start them with this head's address, or lower the number of nodes",
			len(c.members)-len(missing), len(c.members), c.joinTimeout, strings.Join(missing, ", ")))
	}
	if trouble := c.troubleLocked(); trouble != "" && now.Sub(c.data.progressed) > c.loadTimeout {
		c.failLocked(fmt.Sprintf("no progress for %s: %s", c.loadTimeout, trouble))
	}
}

// stop makes the cluster refuse everything and ends all sessions.
func (c *cluster) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopping = true
	for i := range c.members {
		if s := c.members[i].session; s != nil {
			s.close(status.Error(codes.Unavailable, "the head is stopping"))
		}
	}
}

// view is what an answer is made of: the plan, where its rows are and who holds them. It is a copy.
type view struct {
	plan    *tablePlan
	rows    int64
	bounds  []assign.Bounds
	nodes   []load
	members []member
}

// view gives the ready cache, or UNAVAILABLE with the reason.
func (c *cluster) view() (view, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state, reason := c.stateLocked(); state {
	case protocol.StateReady:
	case protocol.StateFailed:
		return view{}, status.Error(codes.Unavailable, "the cache failed: "+reason)
	default:
		return view{}, status.Error(codes.Unavailable, reason)
	}
	v := view{plan: c.data.plan, nodes: slices.Clone(c.data.nodes), members: slices.Clone(c.members)}
	v.rows, v.bounds = c.data.bounds()
	return v, nil
}
