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

	"github.com/kubeflow/datacache/cacheserver/peer"
	"github.com/kubeflow/datacache/cacheserver/plan"
)

// State is where a cache is in its life, in the words of /status.
type State string

// The states. Degraded is a cache that was Ready and lacks a data node; docs/adr/0005 has what makes a cache Failed.
const (
	Planning State = "Planning"
	Loading  State = "Loading"
	Ready    State = "Ready"
	Degraded State = "Degraded"
	Failed   State = "Failed"
)

// cluster is all that the head knows of its data nodes. It does no I/O: streams tell it what happened, and
// it queues what nodes should be told in their sessions' outboxes.
type cluster struct {
	nodeTimeout  time.Duration
	joinTimeout  time.Duration
	loadTimeout  time.Duration
	started      time.Time
	salt         []byte        // of the key of tickets
	request      string        // fingerprint of what is to be cached
	storeTrouble func() string // what reads of the object store are tried again, if any
	planned      chan struct{} // closed once there is a plan

	mu          sync.Mutex
	members     []member
	plan        *tablePlan
	origin      origin           // of plan
	record      []byte           // of plan, for the nodes to keep
	footers     [2]int           // files planned, of all
	splits      []peer.SplitDone // by split; an empty hash was not reported yet
	ready       bool             // every row was in memory once
	progressed  time.Time        // when planning or loading last got on
	trouble     string           // why planning does not get on
	planFailure string           // why there will be no plan unless a node brings one
	failure     string           // why the cache failed
	stopping    bool
}

// member is one data node's place. The zero value is a node that never joined.
type member struct {
	session     *session // nil while the node is not connected
	state       NodeState
	address     string
	incarnation string
	restarts    int
	rows        int64
	bytes       int64
	columnBytes []int64
	done        map[int]bool // splits reported over this session
	trouble     string       // why it does not get on
	recalled    origin       // of the plan whose record it was asked for; noPlan if it was not
	seen        time.Time
	gone        string // why it is not connected
}

// NodeState is where one data node is, in the words of /status.
type NodeState string

// The states of a node.
const (
	NodeMissing NodeState = "Missing" // never joined
	NodeJoined  NodeState = "Joined"  // waits for its part of the plan
	NodeLoading NodeState = "Loading"
	NodeReady   NodeState = "Ready"
	NodeLost    NodeState = "Lost"
)

// session is one connection of a node. closed says why it must end.
type session struct {
	index  int
	out    chan peer.ToNode
	closed chan struct{}
	reason error
	record []byte // pieces received; the receiving goroutine's
}

// close ends the session; only the first call counts. The caller holds the cluster's mu.
func (s *session) close(reason error) {
	select {
	case <-s.closed:
	default:
		s.reason = reason
		close(s.closed)
	}
}

// outboxSize is more than a session is ever told: an assignment and news of Ready for each of few plans, a recall,
// an abort.
const outboxSize = 16

// planning notes how far planning is, in files.
func (c *cluster) planning(done, total int, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.footers, c.progressed = [2]int{done, total}, now
}

// planningTrouble notes why planning is tried again; the empty string ends that.
func (c *cluster) planningTrouble(trouble string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trouble = trouble
}

// planningFailed notes that the table can't be planned. The cache fails with that once it is known that no node
// holds a plan.
func (c *cluster) planningFailed(reason string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.planFailure, c.trouble = reason, ""
	c.decideLocked(now)
}

// decideLocked fails a cache that can't be planned, unless a node may hold its plan: a living node that holds rows
// joins a restarted head within the time that it may be silent; three times that leaves room for its address to be
// looked up anew.
func (c *cluster) decideLocked(now time.Time) {
	if c.planFailure == "" || c.plan != nil || c.failure != "" {
		return
	}
	if len(c.unheardLocked()) > 0 && now.Sub(c.started) <= 3*c.nodeTimeout {
		return
	}
	c.failLocked(c.planFailure)
}

// unheardLocked are the nodes that may hold a plan which the cluster does not know.
func (c *cluster) unheardLocked() []string {
	var unheard []string
	for i := range c.members {
		if m := &c.members[i]; m.incarnation == "" || m.recalled != noPlan {
			unheard = append(unheard, fmt.Sprint(i))
		}
	}
	return unheard
}

// tell queues a message; a session whose outbox is full is dead already and will be closed.
func (s *session) tell(m peer.ToNode) {
	select {
	case s.out <- m:
	default:
	}
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
		return c.progressLocked(s.index, m, *message.Progress, now)
	case message.Loaded != nil:
		return c.loadedLocked(s.index, m, *message.Loaded, now)
	case message.Failed != nil:
		if c.plan != nil && message.Failed.Plan == c.plan.fingerprint {
			c.failLocked(fmt.Sprintf("data node %d (%s): %s", s.index, m.address, message.Failed.Reason))
		}
		return nil
	case message.Leaving != nil:
		return errors.New(message.Leaving.Reason)
	}
	return status.Error(codes.InvalidArgument, "a message that says nothing")
}

// progressLocked records loaded splits. What a split holds must be the same at every load: the row indices
// that clients keep in their checkpoints depend on it.
func (c *cluster) progressLocked(index int, m *member, p peer.Progress, now time.Time) error {
	if c.plan == nil || p.Plan != c.plan.fingerprint || c.failure != "" {
		return nil // of an earlier plan; the assignment, or the abort, is on its way
	}
	m.bytes, m.trouble = p.Bytes, p.Trouble
	if len(p.Done) > 0 {
		c.progressed = now
	}
	run := c.plan.runs[index]
	for _, d := range p.Done {
		if d.Split < run.First || d.Split >= run.End || d.Rows < 0 || d.Hash == "" {
			return status.Errorf(codes.InvalidArgument, "data node %d reports split %d, which is not its own", index, d.Split)
		}
		if reason := c.conflictLocked(d); reason != "" {
			c.failLocked(fmt.Sprintf("data node %d (%s): %s", index, m.address, reason))
			return nil
		}
		c.splits[d.Split] = d
		m.done[d.Split] = true
	}
	return nil
}

// conflictLocked says what is wrong with a split's report, if anything.
func (c *cluster) conflictLocked(d peer.SplitDone) string {
	split := c.plan.splits[d.Split]
	if split.Exact && d.Rows != split.Rows {
		return fmt.Sprintf("%s row group %d has %d rows, but %d were loaded", split.File, split.RowGroup, split.Rows, d.Rows)
	}
	before := c.splits[d.Split]
	if before.Hash != "" && (before.Hash != d.Hash || before.Rows != d.Rows) {
		return fmt.Sprintf("%s row group %d holds other rows than when it was first loaded (%d now, %d then); the file was changed, so start a new cache", split.File, split.RowGroup, d.Rows, before.Rows)
	}
	return ""
}

func (c *cluster) loadedLocked(index int, m *member, l peer.Loaded, now time.Time) error {
	if c.plan == nil || l.Plan != c.plan.fingerprint || c.failure != "" {
		return nil
	}
	run := c.plan.runs[index]
	var rows int64
	for _, d := range c.splits[run.First:run.End] {
		rows += d.Rows
	}
	if len(m.done) != run.Len() || l.Rows != rows || len(l.ColumnBytes) != c.plan.schema.NumFields() {
		return status.Errorf(codes.InvalidArgument, "data node %d says it is loaded with %d rows, but reported %d of %d splits with %d rows", index, l.Rows, len(m.done), run.Len(), rows)
	}
	m.state, m.rows, m.bytes, m.columnBytes, m.trouble = NodeReady, l.Rows, l.Bytes, l.ColumnBytes, ""
	c.progressed = now
	if slices.ContainsFunc(c.members, func(m member) bool { return m.state != NodeReady }) {
		return nil
	}
	return c.completeLocked()
}

// completeLocked notes that every row is in memory. The first time the nodes are told, with the hashes of all splits:
// from now on clients may know these rows, and they must be found again whoever is lost.
func (c *cluster) completeLocked() error {
	if c.ready {
		return nil
	}
	encoded, err := encodeRecord(c.plan, c.splits)
	if err != nil {
		return err
	}
	c.ready, c.origin, c.record = true, readyPlan, encoded
	for i := range c.members {
		c.members[i].session.tell(peer.ToNode{Ready: &peer.Ready{Plan: c.plan.fingerprint, Record: encoded}})
	}
	return nil
}

// leave takes note that a node's session ended.
func (c *cluster) leave(s *session, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := &c.members[s.index]
	if m.session == s {
		m.session, m.state, m.gone, m.recalled = nil, NodeLost, reason, noPlan
	}
}

// failLocked ends the cache and tells every node to free its part of the plan. Only the first reason is kept.
func (c *cluster) failLocked(reason string) {
	if c.failure != "" {
		return
	}
	c.failure = reason
	for i := range c.members {
		if m := &c.members[i]; m.session != nil && m.recalled == noPlan {
			c.abortLocked(m.session)
		}
	}
}

// abortLocked tells a node why the cache failed. The node stays, to tell whoever asks it, and frees the rows that it
// has of the plan that failed.
func (c *cluster) abortLocked(s *session) {
	abort := &peer.Abort{Reason: c.failure}
	if c.plan != nil {
		abort.Plan = c.plan.fingerprint
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
			m.session, m.state, m.gone, m.recalled = nil, NodeLost, fmt.Sprintf("silent for more than %s", c.nodeTimeout), noPlan
		}
		if m.incarnation == "" {
			missing = append(missing, fmt.Sprint(i))
		}
	}
	c.decideLocked(now)
	if c.ready {
		return
	}
	if len(missing) > 0 && now.Sub(c.started) > c.joinTimeout {
		c.failLocked(fmt.Sprintf("%d of %d data nodes joined within %s; missing: %s. Start them with this head's address, or lower the number of nodes",
			len(c.members)-len(missing), len(c.members), c.joinTimeout, strings.Join(missing, ", ")))
	}
	if trouble := c.troubleLocked(); trouble != "" && now.Sub(c.progressed) > c.loadTimeout {
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

// view is what an answer is made of: the plan and where its rows are. It is a copy.
type view struct {
	plan    *tablePlan
	rows    int64
	bounds  []plan.Bounds
	members []member
}

// view gives the ready cache, or UNAVAILABLE with the reason.
func (c *cluster) view() (view, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state, reason := c.stateLocked(); state {
	case Ready:
	case Failed:
		return view{}, status.Error(codes.Unavailable, "the cache failed: "+reason)
	default:
		return view{}, status.Error(codes.Unavailable, reason)
	}
	v := view{plan: c.plan, members: slices.Clone(c.members)}
	counts := make([]int64, len(v.members))
	for i, m := range v.members {
		counts[i] = m.rows
		v.rows += m.rows
	}
	v.bounds = plan.Rows(counts)
	return v, nil
}
