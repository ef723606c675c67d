// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"time"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/reading"
	"github.com/kubeflow/datacache/internal/watch"
	"github.com/kubeflow/datacache/internal/words"
)

// pageSource is the watch.Source of the page of the data node.
type pageSource struct {
	node    *Node
	readers reading.Readers
}

// Series implements watch.Source.
func (l *pageSource) Series() []watch.Series {
	return append(reading.Series(),
		watch.Series{Name: "rows", Chart: "Rows loaded a second", Unit: watch.Count, Rate: true},
		watch.Series{Name: "bytes", Chart: "Bytes loaded a second", Unit: watch.Bytes, Rate: true},
		watch.Series{Name: "from the store", Chart: "Bytes fetched a second", Unit: watch.Bytes, Rate: true},
		watch.Series{Name: "from the object cache", Chart: "Bytes fetched a second", Unit: watch.Bytes, Rate: true},
		watch.Series{Name: "all", Chart: "Memory", Unit: watch.Bytes},
		watch.Series{Name: "clients", Chart: "Memory", Unit: watch.Bytes},
		watch.Series{Name: "limit", Chart: "Memory", Unit: watch.Bytes, Limit: true},
	)
}

// Sample implements watch.Source.
func (l *pageSource) Sample() watch.Sample {
	total, readers := l.node.server.Traffic(protocol.MaxReaders)
	l.readers.Update(time.Now(), readers)
	s, fetched := l.node.status(), l.node.cfg.Store.Stats()
	values := reading.Values(total)
	for _, v := range []int64{s.Rows, s.Bytes, fetched.Bytes, fetched.CacheBytes, s.Memory.Used, l.node.cfg.Budget.Clients().Used(), s.Memory.Limit} {
		values = append(values, float64(v))
	}
	return watch.Sample{
		Values: values, Done: int64(s.Splits.Done), Total: int64(s.Splits.Total),
		States: []watch.State{{Who: fmt.Sprintf("data node %d", s.Index), Is: s.State, Reason: s.Reason, Tone: toneOf(s.State)}},
	}
}

// View implements watch.Source.
func (l *pageSource) View() watch.View {
	s := l.node.status()
	v := watch.View{
		Role: fmt.Sprintf("data node %d", s.Index), Name: l.node.cfg.Source.String(), State: s.State, Reason: s.Reason, Tone: toneOf(s.State),
		Done: int64(s.Splits.Done), Total: int64(s.Splits.Total), Unit: "splits", Waits: waitsOf(s),
		Meters: []watch.Meter{
			{Name: "rows, loading and clients", Used: s.Memory.Used, Peak: s.Memory.Peak, Limit: s.Memory.Limit},
			{Name: "of it for clients", Used: l.node.cfg.Budget.Clients().Used(), Limit: s.Memory.Limit},
		},
		Tables: []watch.Table{l.node.splits(s), l.readers.Table()},
		Facts: []watch.Fact{
			{Name: "Head", Value: l.node.cfg.Head}, {Name: "Clients reach it at", Value: l.node.cfg.Advertise},
			{Name: "Incarnation", Value: s.Incarnation},
		},
	}
	if s.Spill != nil {
		v.Meters = append(v.Meters, watch.Meter{Name: "rows on its disk", Used: s.Spill.Bytes, Limit: s.Spill.Limit})
		v.Facts = append(v.Facts, watch.Fact{Name: "Rows", Value: s.Spill.String()})
	}
	if a := l.node.current(); a != nil {
		d := a.spec.Dataset
		v.Facts = append(v.Facts, watch.Fact{Name: "Snapshot", Value: fmt.Sprint(d.Snapshot)}, watch.Fact{Name: "Filter", Value: d.Filter},
			watch.Fact{Name: "Fingerprint", Value: d.Fingerprint})
	}
	return v
}

// splits shows which of the node's splits are loaded.
func (n *Node) splits(s Status) watch.Table {
	t := watch.Table{ID: "splits", Title: "Its part of the table", Empty: "The head has not assigned it one.", Head: []string{"Splits", "Rows", "Bytes"}}
	a := n.current()
	if a == nil {
		return t
	}
	all, _ := a.progress.Report(0)
	done := make(map[int]bool, len(all))
	for _, split := range all {
		done[split.Split-a.spec.First] = true
	}
	t.Note = fmt.Sprintf("Splits %d to %d of the plan.", a.spec.First, a.spec.First+s.Splits.Total-1)
	t.Rows = [][]watch.Cell{{
		reading.Loading(s.Splits.Done, s.Splits.Total, func(i int) bool { return done[i] }),
		watch.Number(words.Count(float64(s.Rows))), watch.Number(words.Bytes(float64(s.Bytes))),
	}}
	return t
}

// waitsOf names what keeps a node from being ready, and what a person can do about it.
func waitsOf(s Status) []watch.Wait {
	fix := map[string]string{
		"Waiting": "Check that the head runs, that this node reaches it, and that both have the same CACHE_SECRET.",
		"Loading": "It tries reads again by itself. If it stays so, check that the store answers, and this pod's credentials and network policies.",
		"Failed":  "Correct what the reason names, then start a new cache.",
	}[s.State]
	if fix == "" {
		return nil
	}
	return []watch.Wait{{For: s.Reason, Fix: fix}}
}

func toneOf(state string) watch.Tone {
	switch state {
	case "Ready":
		return watch.Good
	case "Failed":
		return watch.Bad
	case "Stopping":
		return watch.Idle
	}
	return watch.Busy
}
