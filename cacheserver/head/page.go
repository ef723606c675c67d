// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/reading"
	"github.com/kubeflow/datacache/internal/watch"
	"github.com/kubeflow/datacache/internal/words"
)

// mostShown is the number of data nodes that the page lists.
const mostShown = 50

// pageSource is the watch.Source of the page of the head.
type pageSource struct {
	head    *Head
	readers reading.Readers
}

// Series implements watch.Source.
func (l *pageSource) Series() []watch.Series {
	return append(reading.Series(),
		watch.Series{Name: "rows", Chart: "Rows loaded a second", Unit: watch.Count, Rate: true},
		watch.Series{Name: "bytes", Chart: "Bytes loaded a second", Unit: watch.Bytes, Rate: true},
		watch.Series{Name: "data nodes", Chart: "Memory of the data nodes", Unit: watch.Bytes},
		watch.Series{Name: "limit", Chart: "Memory of the data nodes", Unit: watch.Bytes, Limit: true},
		watch.Series{Name: "ready", Chart: "Data nodes", Unit: watch.Count},
		watch.Series{Name: "all", Chart: "Data nodes", Unit: watch.Count, Limit: true},
	)
}

// Sample implements watch.Source.
func (l *pageSource) Sample() watch.Sample {
	c, now := l.head.cluster, time.Now()
	c.mu.Lock()
	total, readers := c.traffic()
	s := watch.Sample{Values: reading.Values(total), Done: int64(c.data.footers[0]), Total: int64(c.data.footers[1])}
	if c.data.plan != nil {
		s.Done, s.Total = 0, int64(len(c.data.plan.splits))
	}
	var rows, bytes, used, limit, ready float64
	state, reason := c.overall()
	s.States = append(s.States, watch.State{Who: "cache", Is: string(state), Reason: reason, Tone: toneOf(state)})
	for i := range c.members {
		m, d := &c.members[i], &c.data.nodes[i]
		rows, bytes = rows+float64(d.reported), bytes+float64(d.bytes)
		if !l.head.cfg.OneProcess || i == 0 {
			used, limit = used+float64(m.vitals.Memory.Used), limit+float64(m.vitals.Memory.Limit)
		}
		node := watch.State{Who: fmt.Sprintf("data node %d", i), Is: string(c.node(i)), Reason: d.trouble}
		if m.gone != "" && m.session == nil {
			node.Reason = m.loss()
		}
		node.Tone = nodeTone(protocol.NodeState(node.Is))
		if node.Tone == watch.Good {
			ready++
		}
		if c.data.plan != nil {
			s.Done += int64(d.count)
		}
		s.States = append(s.States, node)
	}
	nodes := float64(len(c.members))
	c.mu.Unlock()
	l.readers.Update(now, readers)
	s.Values = append(s.Values, rows, bytes, used, limit, ready, nodes)
	return s
}

// View implements watch.Source.
func (l *pageSource) View() watch.View { return l.view(l.head.Report()) }

func (l *pageSource) view(s protocol.Status) watch.View {
	v := watch.View{
		Role: "cache", Name: nameOf(s.Table), State: string(s.State), Reason: s.Reason, Tone: toneOf(s.State),
		Done: int64(s.Splits.Done), Total: int64(s.Splits.Total), Unit: "splits", Waits: waitsOf(s),
	}
	c := l.head.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.data.plan == nil {
		v.Done, v.Total, v.Unit = int64(c.data.footers[0]), int64(c.data.footers[1]), "files planned"
	}
	v.Tables = []watch.Table{c.nodes(s), l.readers.Table()}
	if l.head.cfg.Puts {
		v.Tables = append(v.Tables, datasets(s))
	}
	v.Meters = l.meters(s)
	v.Facts = c.facts(s, c.started)
	return v
}

func (l *pageSource) meters(s protocol.Status) []watch.Meter {
	b := l.head.cfg.Budget
	own := watch.Meter{Name: "head", Used: b.Used(), Peak: b.Peak(), Limit: b.Limit()}
	if l.head.cfg.OneProcess {
		own.Name = "head and data nodes, one process"
		return []watch.Meter{own}
	}
	var meters []watch.Meter
	for _, n := range shown(s) {
		if n.Memory.Limit > 0 {
			meters = append(meters, watch.Meter{Name: fmt.Sprintf("data node %d", n.Index), Used: n.Memory.Used, Peak: n.Memory.Peak, Limit: n.Memory.Limit})
		}
		if n.Spill != nil {
			meters = append(meters, watch.Meter{Name: fmt.Sprintf("data node %d, rows on its disk", n.Index), Used: n.Spill.Bytes, Limit: n.Spill.Limit})
		}
	}
	return append(meters, own)
}

// shown returns the data nodes that the page lists: all or, of many, those that are not ready first.
func shown(s protocol.Status) []protocol.NodeStatus {
	if len(s.Nodes) <= mostShown {
		return s.Nodes
	}
	nodes := slices.Clone(s.Nodes)
	slices.SortStableFunc(nodes, func(a, b protocol.NodeStatus) int { return wellness(a) - wellness(b) })
	return nodes[:mostShown]
}

// wellness is 1 for a data node that is ready, otherwise 0.
func wellness(n protocol.NodeStatus) int {
	if n.State == protocol.NodeReady {
		return 1
	}
	return 0
}

// nodes lists the data nodes that are shown.
func (c *state) nodes(s protocol.Status) watch.Table {
	t := watch.Table{
		ID: "nodes", Title: "Data nodes", Note: spread(s),
		Head: []string{"Node", "State", "Splits", "Rows", "Bytes", "Restarts", "Address", "Reason"},
	}
	if len(s.Nodes) > mostShown {
		t.Note = strings.TrimSpace(fmt.Sprintf("%s These are %d of %d data nodes, those that are not ready first; /status has all.", t.Note, mostShown, len(s.Nodes)))
	}
	for _, n := range shown(s) {
		done := c.data.nodes[n.Index].done
		t.Rows = append(t.Rows, []watch.Cell{
			watch.Text(strconv.Itoa(n.Index)), watch.Toned(string(n.State), nodeTone(n.State)),
			reading.Loading(n.Splits.Done, n.Splits.Total, func(split int) bool { return split < len(done) && done[split] }),
			watch.Number(words.Count(float64(n.Rows))), watch.Number(words.Bytes(float64(n.Bytes))),
			watch.Number(strconv.Itoa(n.Restarts)), watch.Text(place(n.Address, n.Machine)), watch.Text(n.Reason),
		})
	}
	return t
}

// datasets lists the datasets that were put.
func datasets(s protocol.Status) watch.Table {
	t := watch.Table{ID: "datasets", Title: "Datasets that clients put", Empty: "None.", Head: []string{"Name", "State", "Rows", "Bytes", "Put at", "Fingerprint", "Table", "Reason"}}
	for _, d := range s.Datasets {
		t.Rows = append(t.Rows, []watch.Cell{
			watch.Text(d.Name), watch.Text(d.State), watch.Number(words.Count(float64(d.Rows))), watch.Number(words.Bytes(float64(d.Bytes))),
			watch.Text(time.Unix(d.Published, 0).UTC().Format(time.DateTime)), watch.Text(d.Fingerprint), watch.Text(committed(d.Commit)), watch.Text(d.Reason),
		})
	}
	return t
}

// committed describes a commit to a table.
func committed(c *protocol.CommitStatus) string {
	switch {
	case c == nil:
		return ""
	case c.State == protocol.CommitDone:
		return fmt.Sprintf("%s: snapshot %d", c.Table, c.Snapshot)
	case c.Reason != "":
		return fmt.Sprintf("%s: %s: %s", c.Table, c.State, c.Reason)
	}
	return c.Table + ": " + c.State
}

// spread says how evenly the data nodes share the rows.
func spread(s protocol.Status) string {
	if s.State != protocol.StateReady || len(s.Nodes) < 2 {
		return ""
	}
	rows := make([]int64, 0, len(s.Nodes))
	for _, n := range s.Nodes {
		rows = append(rows, n.Rows)
	}
	slices.Sort(rows)
	format := func(n int64) string { return words.Count(float64(n)) }
	return fmt.Sprintf("Rows by node: least %s, median %s, most %s.", format(rows[0]), format(rows[len(rows)/2]), format(rows[len(rows)-1]))
}

// held says how many bytes the rows have, and where they are.
func held(s protocol.Status) string {
	bytes, sum := words.Bytes(float64(s.Bytes)), protocol.SpillStatus{}
	for _, n := range s.Nodes {
		if n.Spill == nil {
			return bytes + " in memory"
		}
		sum.Bytes, sum.Limit, sum.Resident = sum.Bytes+n.Spill.Bytes, sum.Limit+n.Spill.Limit, sum.Resident+n.Spill.Resident
	}
	return bytes + ": " + sum.String()
}

// facts describes the dataset.
func (c *state) facts(s protocol.Status, since time.Time) []watch.Fact {
	facts := []watch.Fact{{Name: "Table", Value: s.Table}}
	if p := c.data.plan; p != nil {
		facts = append(facts,
			watch.Fact{Name: "Table's UUID", Value: p.Identity.UUID},
			watch.Fact{Name: "Snapshot", Value: strconv.FormatInt(s.Snapshot, 10)},
			watch.Fact{Name: "Filter", Value: orNone(p.Identity.Filter)},
			watch.Fact{Name: "Columns", List: fieldNames(p.Schema)},
			watch.Fact{Name: "Fingerprint", Value: p.dataset.Fingerprint},
		)
	}
	facts = append(facts,
		watch.Fact{Name: "Rows", Value: strconv.FormatInt(s.Rows, 10)},
		watch.Fact{Name: "Their bytes", Value: held(s)},
		watch.Fact{Name: "Head since", Value: since.UTC().Format(time.RFC3339)},
	)
	if s.State == protocol.StateReady {
		facts = append(facts, watch.Fact{Name: "Takes, with one rank at 1 GB/s", List: sizingLines(s)})
	}
	return facts
}

// sizingLines is what the cache takes with one rank that reads 1 GB/s, by measurements.
func sizingLines(s protocol.Status) (lines []string) {
	for _, line := range DescribeSizing(holding(assign.Demand{Ranks: 1, Rate: 1_000_000_000}, s)) {
		lines = append(lines, line[0]+": "+line[1])
	}
	return lines
}

// nameOf is the name of a table: the folder's if the table is given by the path of its metadata, which is among the facts.
func nameOf(table string) string {
	table, _, _ = strings.Cut(table, " of catalog ")
	folder, _, _ := strings.Cut(table, "/metadata/")
	return folder[strings.LastIndexByte(folder, '/')+1:]
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// waitsOf names what keeps a cache from being ready, and what a person can do about it.
func waitsOf(s protocol.Status) []watch.Wait {
	const (
		again = "It tries again by itself. Check that the store and the catalog answer, and the credentials and network policies of the cache's pods."
		join  = "Start it with this head's address and the same CACHE_SECRET. In a cluster: kubectl describe pod, for what keeps its pod from running."
		gone  = "It loads its part again when its pod is back. If it ended: kubectl logs --previous, and its memory limit."
	)
	var waits []watch.Wait
	switch s.State {
	case protocol.StateReady:
		return nil
	case protocol.StateFailed:
		return []watch.Wait{{For: s.Reason, Fix: "Correct what the reason names, then start a new cache. This one stays so that the reason can be read."}}
	case protocol.StatePlanning:
		waits = append(waits, watch.Wait{For: s.Reason, Fix: "Planning reads the footer of each file. " + again})
	case protocol.StateLoading, protocol.StateDegraded:
	}
	for _, n := range shown(s) {
		who := fmt.Sprintf("data node %d", n.Index)
		switch {
		case n.State == protocol.NodeMissing:
			waits = append(waits, watch.Wait{For: who + " has not joined", Fix: join})
		case n.State == protocol.NodeLost:
			waits = append(waits, watch.Wait{For: fmt.Sprintf("%s (%s) is gone %s", who, place(n.Address, n.Machine), n.Reason), Fix: gone})
		case n.State != protocol.NodeReady && n.Reason != "":
			waits = append(waits, watch.Wait{For: who + ": " + n.Reason, Fix: again})
		}
	}
	return waits
}

func toneOf(s protocol.State) watch.Tone {
	switch s {
	case protocol.StateReady:
		return watch.Good
	case protocol.StateDegraded:
		return watch.Warn
	case protocol.StateFailed:
		return watch.Bad
	case protocol.StatePlanning, protocol.StateLoading:
	}
	return watch.Busy
}

func nodeTone(s protocol.NodeState) watch.Tone {
	switch s {
	case protocol.NodeReady:
		return watch.Good
	case protocol.NodeLost:
		return watch.Bad
	case protocol.NodeMissing:
		return watch.Idle
	case protocol.NodeJoined, protocol.NodeLoading:
	}
	return watch.Busy
}
