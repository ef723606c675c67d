// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

// cluster is the head's state of its data nodes. It does no I/O: the goroutines that serve streams report events to it, and it queues
// messages to nodes in their sessions' outboxes. Its parts decide: state what the cache is and waits for, limits when it fails, dataset
// which reports are valid, filters which indexes nodes are asked for.
type cluster struct {
	limits
	salt []byte // for deriving the key of tickets

	mu sync.Mutex
	state
	filters filters
	puts    *putDatasets
	trace   loadTrace

	moved chan struct{} // wakes the gatherer of a plan: it has a value after a node has joined or left
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
	c.checkLocked(now)
}

// checkLocked fails the cache if it must fail now.
func (c *cluster) checkLocked(now time.Time) {
	if reason := c.fault(&c.state, now); reason != "" {
		c.failLocked(reason)
	}
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
		if served := c.puts.served[message.Indexed.Plan]; served != nil {
			return served.filters.indexed(s, m.address, *message.Indexed, served.rows[s.index])
		}
		if !c.data.loads(message.Indexed.Plan) {
			return nil
		}
		return c.filters.indexed(s, m.address, *message.Indexed, c.data.nodes[s.index].rows)
	case message.Measured != nil:
		if answer := s.measured[message.Measured.ID]; answer != nil {
			answer <- *message.Measured // it has room
			delete(s.measured, message.Measured.ID)
		}
		return nil
	case message.Staged != nil:
		defer c.puts.changedLocked()
		return c.puts.catalog.Staged(s.index, *message.Staged, now)
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
	conflict, err := c.data.loaded(index, l, now)
	if conflict != "" {
		c.failLocked(fmt.Sprintf("data node %d (%s): %s", index, c.members[index].address, conflict))
	}
	if conflict != "" || err != nil {
		return err
	}
	for i := range c.members {
		if c.node(i) != protocol.NodeReady {
			return nil
		}
	}
	if !c.data.ready {
		err := c.data.complete()
		c.trace.end(&c.data, err)
		if err != nil {
			return err
		}
		c.keepLoadedLocked()
	}
	return nil
}

// keepLoadedLocked has the nodes keep what they have loaded, now that the cache is Ready.
func (c *cluster) keepLoadedLocked() {
	for part := range c.members {
		keep := peer.ToNode{Keep: c.data.loadedPart(part)}
		for _, node := range assign.Keepers(part, len(c.members)) {
			c.members[node].session.tell(keep)
		}
	}
	ready := &peer.Ready{Plan: c.data.plan.fingerprint, Outline: c.data.outline}
	c.members.tell(peer.ToNode{Ready: ready}, func(int) bool { return true })
}

// leave records that a node's session has ended. It returns whether that is because the head stops.
func (c *cluster) leave(s *session, reason string, now time.Time) (stopping bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.close(status.Error(codes.Unavailable, reason))
	if c.members[s.index].session == s {
		c.loseLocked(s.index, reason, now)
	}
	return c.stopping
}

// loseLocked records that a node is not connected any more, and its rows don't count as loaded: if it joins again with them, it reports
// them again.
func (c *cluster) loseLocked(index int, reason string, now time.Time) {
	c.members[index].lose(reason, now)
	c.filters.wake()
	c.puts.catalog.Leave(index)
	c.puts.changedLocked()
	c.data.reset(index)
	wake(c.moved)
}

// failLocked fails the cache and tells every node to free its part of the plan. Later reasons are ignored.
func (c *cluster) failLocked(reason string) {
	if c.data.failure != "" {
		return
	}
	c.data.failure = reason
	c.trace.end(&c.data, errors.New(reason))
	c.members.tell(c.abort(), func(i int) bool { return c.data.nodes[i].recalled == noPlan })
}

// abort tells a node why the cache failed. The node keeps running, to report the reason, and frees its rows of the failed plan.
func (c *state) abort() peer.ToNode {
	abort := &peer.Abort{Reason: c.data.failure}
	if c.data.plan != nil {
		abort.Plan = c.data.plan.fingerprint
	}
	return peer.ToNode{Abort: abort}
}

// tick closes the sessions of silent nodes, ends the evaluation of filters that nobody waits for, and fails a cache that has waited for
// too long. It returns the names of puts that were given up.
func (c *cluster) tick(now time.Time) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.members {
		if m := &c.members[i]; m.session != nil && now.Sub(m.seen) > c.silence {
			m.session.close(status.Errorf(codes.DeadlineExceeded, "silent for %s", c.silence))
			c.loseLocked(i, fmt.Sprintf("silent for more than %s", c.silence), m.seen)
		}
	}
	c.checkLocked(now)
	c.filters.cancel(c.members, c.data.plan, now)
	for _, served := range c.puts.served {
		served.filters.cancel(c.members, served.plan, now)
	}
	return c.puts.expireLocked(now)
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

// endTrace ends the trace of the first load, if it has not ended.
func (c *cluster) endTrace(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trace.end(&c.data, err)
}

// status returns a copy of the cluster's state.
func (c *cluster) status(table string) protocol.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.report(table)
	s.Datasets = c.puts.catalog.List()
	return s
}

// view returns the view of a ready cache or, if it may be early, of one that loads and whose rows are known; otherwise UNAVAILABLE with the
// reason.
func (c *cluster) view(early bool) (*view, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.ready()
	if err != nil && early && c.joined() && c.data.plan.uncounted == 0 {
		return c.loading()
	}
	return v, err
}

// ready is view for a caller that holds mu.
func (c *state) ready() (_ *view, err error) {
	switch state, reason := c.overall(); state {
	case protocol.StateReady:
	case protocol.StateFailed:
		return nil, status.Error(codes.Unavailable, "the cache failed: "+reason)
	default:
		return nil, status.Error(codes.Unavailable, reason)
	}
	if c.data.served == nil {
		if c.data.served, err = c.serve(); err != nil {
			return nil, err
		}
	}
	return c.data.served, nil
}

// filtered waits until every node has the index of a filter over the rows of v, and returns v with the filtered rows and the index's id.
func (c *cluster) filtered(ctx context.Context, v *view, by asked) (*view, string, error) {
	c.mu.Lock()
	filters := c.puts.filtersLocked(v.plan)
	f, err := filters.open(v.plan, len(v.nodes), by)
	c.mu.Unlock()
	if err != nil {
		return nil, "", err
	}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		f.close(ctx.Err())
	}()
	deadline := time.NewTimer(indexWait)
	defer deadline.Stop()
	for {
		filtered, changed, err := c.askNodes(v, f)
		if err != nil || changed == nil {
			return filtered, f.id, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, "", status.FromContextError(ctx.Err()).Err()
		case <-deadline.C:
			c.mu.Lock()
			defer c.mu.Unlock()
			return nil, "", status.Errorf(codes.Unavailable, "indexing filter (%d/%d nodes)", f.indexed(c.members), len(f.nodes))
		}
	}
}

// askNodes requests the index of a filter from the nodes that have none. It returns the cluster's view, which may have changed, with the
// filtered rows once all nodes have it, and before that a channel that is closed when this may be so.
func (c *cluster) askNodes(of *view, f *filter) (v *view, changed <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	plan, filters := of.plan, c.puts.filtersLocked(of.plan)
	if v, err = c.puts.currentLocked(of); err != nil {
		return nil, nil, err
	}
	if v.plan != plan || filters.held[f.by.text] != f {
		return nil, nil, status.Error(codes.Unavailable, "filter: the cache has changed its plan: ask again")
	}
	if err := filters.ask(c.members, plan, f); err != nil {
		return nil, nil, err
	}
	if f.indexed(c.members) < len(f.nodes) {
		return nil, filters.changed, nil
	}
	places, err := f.located()
	if err != nil {
		return nil, nil, err
	}
	chosen := *v
	chosen.places = places
	chosen.filtered = places.bounds[len(places.bounds)-1][1]
	chosen.rows = chosen.filtered
	return &chosen, nil, nil
}
