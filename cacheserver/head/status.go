// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"fmt"
	"strings"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/watch/reading"
)

// status returns a copy of the cluster's state.
func (c *cluster) status(table string) protocol.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := protocol.Status{Table: table, Nodes: make([]protocol.NodeStatus, len(c.members))}
	s.State, s.Reason = c.stateLocked()
	if c.data.plan != nil {
		s.Snapshot = c.data.plan.dataset.Snapshot
		s.Splits.Total = len(c.data.plan.Splits)
	}
	for i := range c.members {
		n := c.nodeStatusLocked(i)
		s.Nodes[i] = n
		s.Rows += n.Rows
		s.Bytes += n.Bytes
		s.Splits.Done += n.Splits.Done
	}
	_, readers := c.trafficLocked()
	s.Readers = reading.Merge(readers)
	s.Readers = s.Readers[:min(len(s.Readers), protocol.MaxReaders)]
	return s
}

func (c *cluster) nodeStatusLocked(index int) protocol.NodeStatus {
	m, l := &c.members[index], &c.data.nodes[index]
	n := protocol.NodeStatus{
		Index: index, Address: m.address, Machine: m.machine, State: c.nodeStateLocked(index), Restarts: m.restarts,
		Bytes: l.bytes, Splits: protocol.SplitStatus{Done: len(l.done)}, Memory: m.vitals.Memory,
	}
	switch n.State {
	case protocol.NodeLost:
		n.Reason = m.loss()
	case protocol.NodeMissing, protocol.NodeJoined, protocol.NodeLoading, protocol.NodeReady:
		n.Reason = l.trouble
	}
	if c.data.plan == nil {
		return n
	}
	n.Rows, n.Splits.Total = c.data.rowsOf(index)
	return n
}

// nodeStateLocked is the state of a node's connection or, while it is connected, of its part of the dataset.
func (c *cluster) nodeStateLocked(index int) protocol.NodeState {
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

// stateLocked derives the cache's state, and one line that gives the reason.
func (c *cluster) stateLocked() (protocol.State, string) {
	switch {
	case c.data.failure != "":
		return protocol.StateFailed, c.data.failure
	case c.stopping:
		return protocol.StateDegraded, "the head is stopping"
	case c.data.plan == nil:
		return protocol.StatePlanning, c.planningLocked()
	}
	waits := c.waitsLocked()
	if len(waits) == 0 {
		return protocol.StateReady, "ready"
	}
	if c.data.ready {
		return protocol.StateDegraded, strings.Join(waits, "; ")
	}
	done, total := 0, len(c.data.plan.Splits)
	for i := range c.data.nodes {
		done += len(c.data.nodes[i].done)
	}
	progress := fmt.Sprintf("loading %d%% (%d/%d splits)", percent(done, total), done, total)
	if missing := c.absentLocked(); missing != "" {
		progress += "; " + missing
	}
	if trouble := c.troubleLocked(); trouble != "" {
		progress += "; " + trouble
	}
	return protocol.StateLoading, progress
}

// planningLocked describes the progress of planning, and what delays it.
func (c *cluster) planningLocked() string {
	progress := "planning"
	if c.data.footers[1] > 0 {
		progress = fmt.Sprintf("planning (%d/%d files)", c.data.footers[0], c.data.footers[1])
	}
	if c.data.planFailure != "" {
		return fmt.Sprintf("%s failed: %s; waiting for data node %s, which may hold the rows", progress, c.data.planFailure, strings.Join(c.unheardLocked(), ", "))
	}
	if trouble := c.troubleLocked(); trouble != "" {
		progress += ": " + trouble
	}
	return progress
}

// troubleLocked describes the temporary problem that delays the cache, if there is one.
func (c *cluster) troubleLocked() string {
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
	return strings.Join(troubles, "; ")
}

// waitsLocked describes, for each node that is not ready, what it is waiting for.
func (c *cluster) waitsLocked() []string {
	var waits []string
	for i := range c.members {
		m, l := &c.members[i], &c.data.nodes[i]
		switch c.nodeStateLocked(i) {
		case protocol.NodeReady:
		case protocol.NodeLost:
			waits = append(waits, fmt.Sprintf("data node %d (%s) is gone %s", i, place(m.address, m.machine), m.loss()))
		case protocol.NodeJoined, protocol.NodeLoading:
			what := "loading"
			if m.restarts > 0 {
				what = "restarted, reloading"
			}
			wait := fmt.Sprintf("data node %d %s (%d/%d splits)", i, what, len(l.done), c.data.plan.runs[i].Len())
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

// absentLocked names the nodes of which a first load has not heard anything.
func (c *cluster) absentLocked() string {
	var absent []string
	for i := range c.members {
		if s := c.nodeStateLocked(i); s == protocol.NodeMissing || s == protocol.NodeLost {
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
