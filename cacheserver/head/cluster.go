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

// cluster is the head's state of its data nodes. It does no I/O: the goroutines that serve streams report events to it, and it queues
// messages to nodes in their sessions' outboxes.
type cluster struct {
	nodeTimeout  time.Duration
	joinTimeout  time.Duration
	loadTimeout  time.Duration
	started      time.Time
	salt         []byte        // for deriving the key of tickets
	storeTrouble func() string // describes the reads of the object store that are being retried, if any

	mu       sync.Mutex
	members  []member // by node
	data     dataset
	filters  filters
	trace    loadTrace
	stopping bool
}

// planning records the progress of planning, in files.
func (c *cluster) planning(done, total int, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.data.footers, c.data.progressed = [2]int{done, total}, now
}

// planningTrouble records why planning is being retried; the empty string clears that.
func (c *cluster) planningTrouble(trouble string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.data.trouble = trouble
}

// planningFailed records that the table can't be planned. The cache fails with the reason as soon as it is known that no node holds a
// plan.
func (c *cluster) planningFailed(reason string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.data.planFailure, c.data.trouble = reason, ""
	c.decideLocked(now)
}

// decideLocked fails a cache that can't be planned, unless a node may hold its plan: a running node that holds rows joins a restarted
// head within the time that it may be silent; we wait three times as long, since the head's address may have to be resolved again.
func (c *cluster) decideLocked(now time.Time) {
	if c.data.planFailure == "" || c.data.plan != nil || c.data.failure != "" {
		return
	}
	if len(c.unheardLocked()) > 0 && now.Sub(c.started) <= 3*c.nodeTimeout {
		return
	}
	c.failLocked(c.data.planFailure)
}

// unheardLocked lists the nodes that may hold a plan unknown to the cluster.
func (c *cluster) unheardLocked() []string {
	var unheard []string
	for i := range c.members {
		if c.members[i].incarnation == "" || c.data.nodes[i].recalled != noPlan {
			unheard = append(unheard, fmt.Sprint(i))
		}
	}
	return unheard
}

// apply processes one message of a node. An error ends the session.
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
		if v := message.Progress.Vitals; v != nil {
			v.Readers = v.Readers[:min(len(v.Readers), protocol.MaxReaders)]
			m.vitals = *v
		}
		return c.progressLocked(s.index, *message.Progress, now)
	case message.Loaded != nil:
		return c.loadedLocked(s.index, *message.Loaded, now)
	case message.Failed != nil:
		if c.data.plan != nil && message.Failed.Plan == c.data.plan.fingerprint {
			c.failLocked(fmt.Sprintf("data node %d (%s): %s", s.index, m.address, message.Failed.Reason))
		}
		return nil
	case message.Indexed != nil:
		return c.indexedLocked(s, *message.Indexed)
	case message.Leaving != nil:
		return errors.New(message.Leaving.Reason)
	}
	return status.Error(codes.InvalidArgument, "a message that says nothing")
}

// progressLocked records loaded splits.
func (c *cluster) progressLocked(index int, p peer.Progress, now time.Time) error {
	if !c.data.loads(p.Plan) {
		return nil // it is about an earlier plan; the new assignment, or the abort, is on its way
	}
	conflict, err := c.data.report(index, p, now)
	if conflict != "" {
		c.failLocked(fmt.Sprintf("data node %d (%s): %s", index, c.members[index].address, conflict))
	}
	return err
}

// loadedLocked records that a node has loaded its part.
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
	err := c.completeLocked()
	c.endTraceLocked(err)
	return err
}

// completeLocked records that every row is in memory. The first time it sends Ready to the nodes, with the hashes of all splits: from
// now on clients may use these rows, so they must be reproducible, whichever process is lost.
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

// leave records that a node's session has ended.
func (c *cluster) leave(s *session, reason string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.members[s.index].session == s {
		c.loseLocked(s.index, reason, now)
	}
}

// loseLocked records that a node is not connected any more, and its rows don't count as loaded: if it joins again with them, it reports
// them again.
func (c *cluster) loseLocked(index int, reason string, now time.Time) {
	m := &c.members[index]
	m.session, m.gone, m.goneSince, m.vitals = nil, reason, now, peer.Vitals{}
	c.filters.wake()
	c.data.reset(index)
}

// failLocked fails the cache and tells every node to free its part of the plan. Later reasons are ignored.
func (c *cluster) failLocked(reason string) {
	if c.data.failure != "" {
		return
	}
	c.data.failure = reason
	c.endTraceLocked(errors.New(reason))
	for i := range c.members {
		if s := c.members[i].session; s != nil && c.data.nodes[i].recalled == noPlan {
			c.abortLocked(s)
		}
	}
}

// abortLocked tells a node why the cache failed. The node keeps running, to report the reason, and frees its rows of the failed plan.
func (c *cluster) abortLocked(s *session) {
	abort := &peer.Abort{Reason: c.data.failure}
	if c.data.plan != nil {
		abort.Plan = c.data.plan.fingerprint
	}
	s.tell(peer.ToNode{Abort: abort})
}

// tick closes the sessions of silent nodes, and ends the evaluation of filters that nobody waits for. It fails a first load whose nodes never joined, or that made no progress for too long
// because of the store or the catalog. A cache that was Ready is never failed for this, since its rows are in use.
func (c *cluster) tick(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	missing := make([]string, 0, len(c.members))
	for i := range c.members {
		m := &c.members[i]
		if m.session != nil && now.Sub(m.seen) > c.nodeTimeout {
			m.session.close(status.Errorf(codes.DeadlineExceeded, "silent for %s", c.nodeTimeout))
			c.loseLocked(i, fmt.Sprintf("silent for more than %s", c.nodeTimeout), m.seen)
		}
		if m.incarnation == "" {
			missing = append(missing, fmt.Sprint(i))
		}
	}
	c.decideLocked(now)
	c.cancelFiltersLocked(now)
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

// stop makes the cluster reject everything and ends all sessions.
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

// view is what responses are made from: the plan, the location of its rows and the nodes that hold them. It is a copy.
type view struct {
	plan      *tablePlan
	selection *selection      // nil: all rows
	rows      int64           // of the selection
	filtered  int64           // rows that the selection's filter, if any, is true for
	bounds    []assign.Bounds // of filtered rows
	nodes     []load
	members   []member
}

// view returns the view of a ready cache, or UNAVAILABLE with the reason.
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
	v.filtered = v.rows
	return v, nil
}
