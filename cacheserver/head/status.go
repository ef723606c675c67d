// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"fmt"
	"strings"
)

// Status is the JSON of /status and of DoAction("status"), per wire contract v1.
type Status struct {
	State    State        `json:"state"`
	Reason   string       `json:"reason"`
	Table    string       `json:"table"`
	Snapshot int64        `json:"snapshot"`
	Rows     int64        `json:"rows"`  // in memory
	Bytes    int64        `json:"bytes"` // of Arrow data in memory
	Splits   SplitStatus  `json:"splits"`
	Nodes    []NodeStatus `json:"nodes"`
}

// SplitStatus counts splits.
type SplitStatus struct {
	Done  int `json:"done"`
	Total int `json:"total"`
}

// NodeStatus is one data node as the head sees it.
type NodeStatus struct {
	Index    int         `json:"index"`
	Address  string      `json:"address"`
	State    NodeState   `json:"state"`
	Reason   string      `json:"reason,omitempty"`
	Rows     int64       `json:"rows"`
	Bytes    int64       `json:"bytes"`
	Restarts int         `json:"restarts"`
	Splits   SplitStatus `json:"splits"`
}

// status copies the cluster's state out.
func (c *cluster) status(table string) Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Status{Table: table, Nodes: make([]NodeStatus, len(c.members))}
	s.State, s.Reason = c.stateLocked()
	if c.plan != nil {
		s.Snapshot = c.plan.pin.SnapshotID
		s.Splits.Total = len(c.plan.splits)
	}
	for i := range c.members {
		n := c.nodeStatusLocked(i)
		s.Nodes[i] = n
		s.Rows += n.Rows
		s.Bytes += n.Bytes
		s.Splits.Done += n.Splits.Done
	}
	return s
}

func (c *cluster) nodeStatusLocked(index int) NodeStatus {
	m := &c.members[index]
	n := NodeStatus{
		Index: index, Address: m.address, State: m.state, Reason: m.gone, Restarts: m.restarts,
		Bytes: m.bytes, Splits: SplitStatus{Done: len(m.done)},
	}
	if m.session != nil {
		n.Reason = m.trouble
	}
	if n.State == "" {
		n.State = NodeMissing
	}
	if c.plan == nil {
		return n
	}
	n.Splits.Total = c.plan.runs[index].Len()
	for split := range m.done {
		n.Rows += c.splits[split].Rows
	}
	return n
}

// stateLocked derives the cache's state and says in one line why it is not another.
func (c *cluster) stateLocked() (State, string) {
	switch {
	case c.failure != "":
		return Failed, c.failure
	case c.stopping:
		return Degraded, "the head is stopping"
	case c.plan == nil:
		return Planning, c.planningLocked()
	}
	waits := c.waitsLocked()
	if len(waits) == 0 {
		return Ready, "ready"
	}
	if c.ready {
		return Degraded, strings.Join(waits, "; ")
	}
	done, total := 0, len(c.plan.splits)
	for i := range c.members {
		done += len(c.members[i].done)
	}
	progress := fmt.Sprintf("loading %d%% (%d/%d splits)", percent(done, total), done, total)
	if missing := c.absentLocked(); missing != "" {
		progress += "; " + missing
	}
	if trouble := c.troubleLocked(); trouble != "" {
		progress += "; " + trouble
	}
	return Loading, progress
}

// planningLocked says how far planning is, and why it does not get on.
func (c *cluster) planningLocked() string {
	progress := "planning"
	if c.footers[1] > 0 {
		progress = fmt.Sprintf("planning (%d/%d files)", c.footers[0], c.footers[1])
	}
	if c.planFailure != "" {
		return fmt.Sprintf("%s failed: %s; waiting for data node %s, which may hold the rows", progress, c.planFailure, strings.Join(c.unheardLocked(), ", "))
	}
	if trouble := c.troubleLocked(); trouble != "" {
		progress += ": " + trouble
	}
	return progress
}

// troubleLocked says why the cache does not get on, if something holds it up that may pass.
func (c *cluster) troubleLocked() string {
	if c.plan == nil {
		if c.trouble != "" || c.storeTrouble == nil {
			return c.trouble
		}
		return c.storeTrouble()
	}
	var troubles []string
	for i := range c.members {
		if t := c.members[i].trouble; t != "" {
			troubles = append(troubles, fmt.Sprintf("data node %d: %s", i, t))
		}
	}
	return strings.Join(troubles, "; ")
}

// waitsLocked says of each node that is not ready what it is waited for.
func (c *cluster) waitsLocked() []string {
	var waits []string
	for i := range c.members {
		m := &c.members[i]
		switch m.state {
		case NodeReady:
		case NodeLost:
			waits = append(waits, fmt.Sprintf("data node %d (%s) is gone: %s", i, m.address, m.gone))
		case NodeJoined, NodeLoading:
			what := "loading"
			if m.restarts > 0 {
				what = "restarted, reloading"
			}
			wait := fmt.Sprintf("data node %d %s (%d/%d splits)", i, what, len(m.done), c.plan.runs[i].Len())
			if m.trouble != "" {
				wait += ": " + m.trouble
			}
			waits = append(waits, wait)
		default:
			waits = append(waits, fmt.Sprintf("data node %d has not joined", i))
		}
	}
	return waits
}

// absentLocked names the nodes that a first load waits for without any news.
func (c *cluster) absentLocked() string {
	var absent []string
	for i := range c.members {
		if s := c.members[i].state; s == "" || s == NodeLost {
			absent = append(absent, fmt.Sprint(i))
		}
	}
	if len(absent) == 0 {
		return ""
	}
	return "waiting for data node " + strings.Join(absent, ", ") + " to join"
}

func percent(done, total int) int {
	if total == 0 {
		return 100
	}
	return done * 100 / total
}
