// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"math"
	"sort"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/protocol"
)

const (
	// leastRuns is how many runs of a shuffled share are examined, however few data nodes there are; see mostRuns.
	leastRuns = 1 << 13
	// mixLimit bounds how many positions of a mixture a request examines, and mixCost what that costs; see epoch.Mix.Cost.
	mixLimit, mixCost = 1 << 16, 1 << 19
)

// mostRuns is how many runs of a shuffled share are examined to determine which data nodes hold rows of it. A share with more has rows of
// all nodes with a probability of at least 1 - e^-10, if they hold equally many rows.
func mostRuns(nodes int) uint64 {
	n := float64(nodes)
	return max(leastRuns, uint64(n*(math.Log(n)+10)))
}

// marks are the data nodes that hold rows of a ticket.
type marks struct {
	bounds []assign.Bounds
	marked []bool // by node
	left   int    // nodes with rows that are not marked
	last   int    // the node that was marked last
}

func newMarks(bounds []assign.Bounds) *marks {
	m := &marks{bounds: bounds, marked: make([]bool, len(bounds))}
	for _, b := range bounds {
		if b.Len() > 0 {
			m.left++
		}
	}
	return m
}

// add marks the nodes that have some of the rows [lo, hi).
func (m *marks) add(lo, hi int64) {
	if lo >= hi {
		return
	}
	if b := m.bounds[m.last]; m.marked[m.last] && b[0] <= lo && hi <= b[1] {
		return
	}
	for i := sort.Search(len(m.bounds), func(i int) bool { return m.bounds[i][1] > lo }); i < len(m.bounds) && m.bounds[i][0] < hi; i++ {
		m.mark(i)
	}
}

// mark marks a node, unless it has no rows.
func (m *marks) mark(i int) {
	if !m.marked[i] && m.bounds[i].Len() > 0 {
		m.marked[i] = true
		m.left--
		m.last = i
	}
}

// nodes lists the marked nodes.
func (m *marks) nodes() (nodes []int) {
	for i, marked := range m.marked {
		if marked {
			nodes = append(nodes, i)
		}
	}
	return nodes
}

// walk marks the nodes of the cursor's runs, until all nodes are marked. It returns false if there are more runs than most.
func (m *marks) walk(cursor *epoch.Cursor, most uint64) bool {
	var runs [512]epoch.Run
	for seen := uint64(0); seen < most; {
		n, passed := cursor.Next(runs[:], math.MaxUint64)
		if passed == 0 || m.left == 0 {
			return true
		}
		for _, r := range runs[:n] {
			m.add(int64(r.First), int64(r.First+r.Rows))
		}
		seen += uint64(n)
	}
	return false
}

// holders returns the nodes that hold rows of a ticket of kind Shard or Epoch. A shuffled share with more than mostRuns runs is taken to
// have rows of all nodes: at worst their streams are empty.
func holders(t protocol.Ticket, bounds []assign.Bounds) ([]int, error) {
	cursor, err := t.Cursor()
	if err != nil {
		return nil, err
	}
	m, most := newMarks(bounds), mostRuns(len(bounds))
	if t.Epoch.Lanes {
		most = leastRuns // a run costs ten times as much, and all is nearly exact
	}
	switch runs := runsOf(t); {
	case runs == 0:
		m.inOrder(t)
	case runs > most || !m.walk(cursor, most):
		m.all(t)
	}
	return m.nodes(), nil
}

// runsOf is about the least number of runs of a ticket's share, 0 if its rows are in order.
func runsOf(t protocol.Ticket) uint64 {
	rows, clump := uint64(t.Rows.Len()), uint64(0)
	switch {
	case t.Mix != nil:
		rows = t.Mix.Estimate(t.Epoch, t.Share)
	case t.Kind == protocol.Epoch:
		rows = t.Epoch.Count(t.Share)
	}
	if t.Epoch.Shuffle {
		clump = t.Epoch.Clump
	}
	if t.Epoch.Shuffle && t.Epoch.Window > 0 || t.Split != nil && t.Split.Shuffle {
		clump = 1
	}
	if clump == 0 {
		return 0
	}
	return max(rows/clump, 1)
}

// selected is the range of the filtered rows that a ticket's selection is within.
func (m *marks) selected(t protocol.Ticket) (lo, hi uint64) {
	if t.Split != nil && !t.Split.Shuffle {
		return t.Split.Bounds(uint64(t.Filtered))
	}
	return 0, uint64(m.bounds[len(m.bounds)-1][1])
}

// all marks the nodes that have rows of a ticket's selection.
func (m *marks) all(t protocol.Ticket) {
	lo, hi := m.selected(t)
	if t.Epoch.Lanes && (t.Split == nil || !t.Split.Shuffle) {
		for _, rows := range t.Epoch.LanedRows(t.Share) {
			m.add(int64(lo+rows[0]), int64(lo+rows[1]))
		}
		return
	}
	m.add(int64(lo), int64(hi))
}

// inOrder marks the nodes with rows of a share in order.
func (m *marks) inOrder(t protocol.Ticket) {
	first, _ := m.selected(t)
	if t.Kind == protocol.Shard {
		m.add(int64(first)+t.Rows[0], int64(first)+t.Rows[1])
		return
	}
	for i, b := range m.bounds {
		if t.Epoch.Touches(t.Share, max(uint64(b[0]), first)-first, max(uint64(b[1]), first)-first) {
			m.mark(i)
		}
	}
}

// mixHolders returns the nodes that hold rows of a mixture's part, and the number of these rows: an estimate if counting them costs too much.
func mixHolders(t protocol.Ticket, bounds []assign.Bounds) (nodes []int, rows uint64, err error) {
	m := newMarks(bounds)
	if runsOf(t) <= mostRuns(len(bounds)) && mayWalk(t) {
		rows, err = m.mixed(t, true)
		return m.nodes(), rows, err
	}
	m.all(t)
	t.Epoch.Shuffle, t.Split = false, nil // the number of rows does not depend on their order
	if !mayWalk(t) {
		return m.nodes(), t.Mix.Estimate(t.Epoch, t.Share), nil
	}
	rows, err = m.mixed(t, false)
	return m.nodes(), rows, err
}

// mayWalk reports whether a request may examine all positions of a mixture's share.
func mayWalk(t protocol.Ticket) bool {
	return t.Epoch.Count(t.Share) <= min(mixLimit, mixCost/t.Mix.Cost(t.Epoch))
}

// mixed counts the rows of a mixture's part and, if mark is set, marks their nodes.
func (m *marks) mixed(t protocol.Ticket, mark bool) (rows uint64, err error) {
	cursor, err := t.Cursor()
	if err != nil {
		return 0, err
	}
	var runs [512]epoch.Run
	for {
		n, passed := cursor.Next(runs[:], math.MaxUint64)
		if passed == 0 {
			return rows, nil
		}
		for _, r := range runs[:n] {
			rows += r.Rows
			if mark {
				m.add(int64(r.First), int64(r.First+r.Rows))
			}
		}
	}
}
