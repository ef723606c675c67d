// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"fmt"
	"strings"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/reading"
	"github.com/kubeflow/datacache/internal/words"
)

// state is what a cluster knows of its data nodes and of what they have of the dataset. Its methods only read it. The cluster's mu
// protects it.
type state struct {
	members      members
	data         dataset
	stopping     bool
	incarnation  string        // of this head: another one for each start
	storeTrouble func() string // describes the reads of the object store that are being retried, if any
}

// report is the status of the cache.
func (c *state) report(table string) protocol.Status {
	s := protocol.Status{Table: table, Incarnation: c.incarnation, Nodes: make([]protocol.NodeStatus, len(c.members))}
	s.State, s.Reason = c.overall()
	if c.data.plan != nil {
		s.Snapshot = c.data.plan.dataset.Snapshot
		s.Splits.Total = len(c.data.plan.splits)
		s.Counted = c.data.plan.uncounted == 0
	}
	for i := range c.members {
		n := c.nodeStatus(i)
		s.Nodes[i] = n
		s.Rows += n.Rows
		s.Bytes += n.Bytes
		s.Splits.Done += n.Splits.Done
	}
	_, readers := c.traffic()
	s.Readers = reading.Merge(readers)
	s.Readers = s.Readers[:min(len(s.Readers), protocol.MaxReaders)]
	return s
}

// traffic returns what clients read from all data nodes.
func (c *state) traffic() (total protocol.Traffic, readers []protocol.Reader) {
	for i := range c.members {
		total.Add(c.members[i].vitals.Total)
		readers = append(readers, c.members[i].vitals.Readers...)
	}
	return total, readers
}

func (c *state) nodeStatus(index int) protocol.NodeStatus {
	m, l := &c.members[index], &c.data.nodes[index]
	n := protocol.NodeStatus{
		Index: index, Address: m.address, Machine: m.machine, State: c.node(index), Reason: words.Cut(l.trouble, protocol.MaxReason), Restarts: m.restarts, Incarnation: m.incarnation,
		Rows: l.reported, Bytes: l.bytes, Splits: protocol.SplitStatus{Done: l.count}, Memory: m.vitals.Memory,
		Spill: m.vitals.Spill,
	}
	if n.State == protocol.NodeLost {
		n.Reason = m.loss()
	}
	if c.data.plan != nil {
		n.Splits.Total = c.data.plan.runs[index].Len()
	}
	return n
}

// node is the state of a node's connection or, while it is connected, of its part of the dataset.
func (c *state) node(index int) protocol.NodeState {
	m, l := &c.members[index], &c.data.nodes[index]
	switch {
	case m.incarnation == "":
		return protocol.NodeMissing
	case m.session == nil:
		return protocol.NodeLost
	case l.loaded:
		return protocol.NodeReady
	case l.assigned:
		return protocol.NodeLoading
	}
	return protocol.NodeJoined
}

// overall derives the cache's state, and one line of at most protocol.MaxReason bytes that gives the reason.
func (c *state) overall() (protocol.State, string) {
	state, reason := c.explain()
	return state, words.Cut(reason, protocol.MaxReason)
}

func (c *state) explain() (protocol.State, string) {
	switch {
	case c.data.failure != "":
		return protocol.StateFailed, c.data.failure
	case c.stopping:
		return protocol.StateDegraded, "the head is stopping"
	case c.data.plan == nil:
		return protocol.StatePlanning, c.planning()
	}
	waits := c.waits()
	if len(waits) == 0 {
		return protocol.StateReady, "ready"
	}
	if c.data.ready {
		return protocol.StateDegraded, few(waits)
	}
	done, total := 0, len(c.data.plan.splits)
	for i := range c.data.nodes {
		done += c.data.nodes[i].count
	}
	progress := fmt.Sprintf("loading %d%% (%d/%d splits)", percent(done, total), done, total)
	absent := c.members.names(func(i int) bool { return c.members[i].session == nil })
	if len(absent) > 0 {
		progress += "; waiting for data node " + fewNames(absent) + " to join"
	}
	if trouble := c.trouble(); trouble != "" {
		progress += "; " + trouble
	}
	return protocol.StateLoading, progress
}

// planning describes the progress of planning, and what delays it.
func (c *state) planning() string {
	progress := "planning"
	if c.data.footers[1] > 0 {
		progress = fmt.Sprintf("planning (%d/%d files)", c.data.footers[0], c.data.footers[1])
	}
	if c.data.planFailure != "" {
		return fmt.Sprintf("%s failed: %s; waiting for data node %s, which may hold the rows", progress, c.data.planFailure, fewNames(c.unheard()))
	}
	if trouble := c.trouble(); trouble != "" {
		progress += ": " + trouble
	}
	return progress
}

// trouble describes the temporary problem that delays the cache, if there is one.
func (c *state) trouble() string {
	if c.data.plan == nil {
		if c.data.trouble != "" || c.storeTrouble == nil {
			return c.data.trouble
		}
		return c.storeTrouble()
	}
	var troubles []string
	for i := range c.data.nodes {
		if t := c.data.nodes[i].trouble; t != "" {
			troubles = append(troubles, fmt.Sprintf("data node %d: %s", i, t))
		}
	}
	return few(troubles)
}

// fewest is the number of data nodes that a reason names.
const fewest = 3

// few joins what is said of data nodes, of the first ones only.
func few(said []string) string {
	if more := len(said) - fewest; more > 0 {
		said = append(said[:fewest:fewest], fmt.Sprintf("and %d more data nodes", more))
	}
	return strings.Join(said, "; ")
}

// fewNames joins names of data nodes.
func fewNames(names []string) string {
	if more := len(names) - fewest; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:fewest], ", "), more)
	}
	return strings.Join(names, ", ")
}

// waits describes, for each node that is not ready, what it is waiting for.
func (c *state) waits() []string {
	var waits []string
	for i := range c.members {
		m, l := &c.members[i], &c.data.nodes[i]
		switch c.node(i) {
		case protocol.NodeReady:
		case protocol.NodeLost:
			waits = append(waits, fmt.Sprintf("data node %d (%s) is gone %s", i, place(m.address, m.machine), m.loss()))
		case protocol.NodeJoined, protocol.NodeLoading:
			what := "loading"
			if m.restarts > 0 {
				what = "restarted, reloading"
			}
			wait := fmt.Sprintf("data node %d %s (%d/%d splits)", i, what, l.count, c.data.plan.runs[i].Len())
			if l.trouble != "" {
				wait += ": " + l.trouble
			}
			waits = append(waits, wait)
		default:
			waits = append(waits, fmt.Sprintf("data node %d has not joined", i))
		}
	}
	return waits
}

// unheard lists the nodes that may hold a plan unknown to the cluster.
func (c *state) unheard() []string {
	return c.members.names(func(i int) bool { return c.members[i].incarnation == "" || c.data.nodes[i].recalled != noPlan })
}

func percent(done, total int) int {
	if total == 0 {
		return 100
	}
	return done * 100 / total
}
