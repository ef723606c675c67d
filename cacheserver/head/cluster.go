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

	"github.com/kubeflow/datacache/cacheserver/iceberg"
	"github.com/kubeflow/datacache/cacheserver/peer"
	"github.com/kubeflow/datacache/cacheserver/plan"
)

// State is where a cache is in its life, in the words of /status.
type State string

// The states. Failed is for ever; Degraded is a cache that was Ready and lacks a data node.
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
	nodeTimeout time.Duration
	joinTimeout time.Duration
	started     time.Time
	salt        []byte // of the key of tickets
	question    string
	adopt       func(*iceberg.Pin) // asks for a new plan under a pin that nodes hold; called without mu

	mu       sync.Mutex
	members  []member
	plan     *tablePlan
	held     *iceberg.Pin     // the nodes' pin that the plan must be made under, if any
	footers  [2]int           // files planned, of all
	splits   []peer.SplitDone // by split; an empty hash was not reported yet
	ready    bool             // every row was in memory once
	failure  string           // why the cache failed
	stopping bool
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

// outboxSize is more than a session is ever told: an assignment, a second one after adoption, an abort.
const outboxSize = 8

// join gives a node its place. A node that takes the place of another process ends that one.
func (c *cluster) join(hello peer.Hello, now time.Time) (*session, error) {
	s, pin, err := c.admit(hello, now)
	if pin != nil {
		c.adopt(pin)
	}
	return s, err
}

// admit does what join says and tells which held pin should be adopted, if any.
func (c *cluster) admit(hello peer.Hello, now time.Time) (*session, *iceberg.Pin, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.checkLocked(hello); err != nil {
		return nil, nil, err
	}
	m := &c.members[hello.Index]
	c.replaceLocked(m, hello)
	s := &session{index: hello.Index, out: make(chan peer.ToNode, outboxSize), closed: make(chan struct{})}
	restarts := m.restarts
	if m.incarnation != "" && m.incarnation != hello.Incarnation {
		restarts++
	}
	*m = member{
		session: s, state: NodeJoined, address: hello.Address, incarnation: hello.Incarnation,
		restarts: restarts, done: map[int]bool{}, seen: now,
	}
	if c.failure != "" {
		s.abort(c.failure)
		return s, nil, nil
	}
	if c.adoptableLocked(hello.Held) {
		c.plan, c.held = nil, &hello.Held.Pin
		return s, c.held, nil
	}
	if c.plan != nil {
		c.assignLocked(m)
	}
	return s, nil, nil
}

func (c *cluster) checkLocked(hello peer.Hello) error {
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

// replaceLocked ends the session that a node's place may still have.
func (c *cluster) replaceLocked(m *member, hello peer.Hello) {
	if m.session == nil {
		return
	}
	if m.incarnation != hello.Incarnation {
		reason := fmt.Sprintf("another process, at %s, joined as data node %d", hello.Address, hello.Index)
		m.session.tell(peer.ToNode{Abort: &peer.Abort{Reason: reason, Final: true}})
	}
	m.session.close(status.Errorf(codes.Aborted, "data node %d joined again", hello.Index))
}

// adoptableLocked says whether a node's held pin should win over our own plan: it answers the same question,
// it is loaded, and nobody has loaded anything of ours. So a head that restarts finds its cache again even
// if the table has moved on meanwhile.
func (c *cluster) adoptableLocked(held *peer.Held) bool {
	if held == nil || !held.Loaded || held.Question != c.question || c.ready || c.held != nil {
		return false
	}
	if c.plan != nil && c.plan.fingerprint == held.Plan {
		return false
	}
	return !slices.ContainsFunc(c.splits, func(d peer.SplitDone) bool { return d.Hash != "" })
}

// setPlan hands the plan out to every node that has joined, unless another pin is to be adopted.
func (c *cluster) setPlan(p *tablePlan, held *iceberg.Pin) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held != held || c.failure != "" {
		return
	}
	c.plan = p
	c.splits = make([]peer.SplitDone, len(p.splits))
	for i := range c.members {
		if c.members[i].session != nil {
			c.assignLocked(&c.members[i])
		}
	}
}

// planning notes how far planning is, in files.
func (c *cluster) planning(done, total int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.footers = [2]int{done, total}
}

func (c *cluster) assignLocked(m *member) {
	m.state = NodeLoading
	clear(m.done)
	run := c.plan.runs[m.session.index]
	m.session.tell(peer.ToNode{Assign: &peer.Assign{
		Plan: c.plan.fingerprint, Question: c.plan.question, Dataset: c.plan.dataset,
		Pin: c.plan.pin, Selection: c.plan.selection,
		First: run.First, Splits: c.plan.splits[run.First:run.End], Salt: c.salt,
	}})
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
		return c.progressLocked(s.index, m, *message.Progress)
	case message.Loaded != nil:
		return c.loadedLocked(s.index, m, *message.Loaded)
	case message.Failed != nil:
		c.failLocked(fmt.Sprintf("data node %d (%s): %s", s.index, m.address, message.Failed.Reason))
		return nil
	case message.Leaving != nil:
		return errors.New(message.Leaving.Reason)
	}
	return status.Error(codes.InvalidArgument, "a message that says nothing")
}

// progressLocked records loaded splits. What a split holds must be the same at every load: the row indices
// that clients keep in their checkpoints depend on it.
func (c *cluster) progressLocked(index int, m *member, p peer.Progress) error {
	if c.plan == nil || p.Plan != c.plan.fingerprint || c.failure != "" {
		return nil // of an earlier plan; the assignment, or the abort, is on its way
	}
	m.bytes = p.Bytes
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

func (c *cluster) loadedLocked(index int, m *member, l peer.Loaded) error {
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
	m.state, m.rows, m.bytes, m.columnBytes = NodeReady, l.Rows, l.Bytes, l.ColumnBytes
	if !slices.ContainsFunc(c.members, func(m member) bool { return m.state != NodeReady }) {
		c.ready = true
	}
	return nil
}

// leave takes note that a node's session ended.
func (c *cluster) leave(s *session, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := &c.members[s.index]
	if m.session == s {
		m.session, m.state, m.gone = nil, NodeLost, reason
	}
}

// fail ends the cache for good and tells every node to free its memory. Only the first reason is kept.
func (c *cluster) fail(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(reason)
}

func (c *cluster) failLocked(reason string) {
	if c.failure != "" {
		return
	}
	c.failure = reason
	for i := range c.members {
		if s := c.members[i].session; s != nil {
			s.abort(reason)
		}
	}
}

// abort has the node free its memory. It may stay: it then tells whoever asks it why the cache failed.
func (s *session) abort(reason string) { s.tell(peer.ToNode{Abort: &peer.Abort{Reason: reason}}) }

// tick closes the sessions of nodes that fell silent and gives up on nodes that never came.
func (c *cluster) tick(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	missing := make([]string, 0, len(c.members))
	for i := range c.members {
		m := &c.members[i]
		if m.session != nil && now.Sub(m.seen) > c.nodeTimeout {
			m.session.close(status.Errorf(codes.DeadlineExceeded, "silent for %s", c.nodeTimeout))
			m.session, m.state, m.gone = nil, NodeLost, fmt.Sprintf("silent for more than %s", c.nodeTimeout)
		}
		if m.incarnation == "" {
			missing = append(missing, fmt.Sprint(i))
		}
	}
	if len(missing) > 0 && now.Sub(c.started) > c.joinTimeout {
		c.failLocked(fmt.Sprintf("%d of %d data nodes joined within %s; missing: %s. Start them with this head's address, or lower the number of nodes",
			len(c.members)-len(missing), len(c.members), c.joinTimeout, strings.Join(missing, ", ")))
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
