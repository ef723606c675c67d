// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kubeflow/datacache/cacheserver/head"
)

// narrator turns answers into lines: one when the state changes, one a while as numbers grow. They are what the Kubeflow SDK's
// get_job_logs(step="dataset-initializer") shows.
type narrator struct {
	out   io.Writer
	every time.Duration
	begin time.Time

	state  head.State // of the last line; "" while the head has not answered
	line   string     // the last line
	told   time.Time
	loaded struct { // when loading was first seen, and how much was there then
		at     time.Time
		splits int
		bytes  int64
		rows   int64
	}
}

// last is what the wait ended with.
func (n *narrator) last() string {
	if n.line == "" {
		return "the head has not been asked yet"
	}
	return n.line
}

// silent tells that the head gives no answer.
func (n *narrator) silent(err error, now time.Time) {
	n.tell("", "waiting for the cache's head: "+err.Error(), now)
}

// heard tells what the head said.
func (n *narrator) heard(s *head.Status, now time.Time) {
	switch s.State {
	case head.Ready:
		n.tell(s.State, fmt.Sprintf("ready: %d rows, %s of %s (snapshot %d) in memory of %d data nodes after %s",
			s.Rows, size(s.Bytes), s.Table, s.Snapshot, len(s.Nodes), now.Sub(n.begin).Round(time.Second/10)), now)
	case head.Loading:
		n.tell(s.State, n.loading(s, now), now)
	default:
		n.tell(s.State, strings.ToLower(string(s.State))+": "+s.Reason, now)
	}
}

// loading is a progress line: percent, splits, rows, bytes, rates, time left, and each node that isn't done.
func (n *narrator) loading(s *head.Status, now time.Time) string {
	if n.loaded.at.IsZero() {
		n.loaded.at, n.loaded.splits, n.loaded.bytes, n.loaded.rows = now, s.Splits.Done, s.Bytes, s.Rows
	}
	line := fmt.Sprintf("%s, %d rows, %s", s.Reason, s.Rows, size(s.Bytes))
	seconds, done := now.Sub(n.loaded.at).Seconds(), s.Splits.Done-n.loaded.splits
	if seconds > 0 && done > 0 {
		left := time.Duration(seconds / float64(done) * float64(s.Splits.Total-s.Splits.Done) * float64(time.Second))
		line += fmt.Sprintf(" at %.0f rows/s and %s/s, %s left",
			float64(s.Rows-n.loaded.rows)/seconds, size(int64(float64(s.Bytes-n.loaded.bytes)/seconds)), left.Round(time.Second))
	}
	return line + nodes(s.Nodes)
}

// nodes tells of each data node that is not ready, the first ten of them.
func nodes(all []head.NodeStatus) string {
	var waits []string
	for _, node := range all {
		if node.State != head.NodeReady {
			waits = append(waits, fmt.Sprintf("node %d %s %d/%d", node.Index, node.State, node.Splits.Done, node.Splits.Total))
		}
	}
	switch {
	case len(waits) == 0:
		return ""
	case len(waits) > 10:
		waits = append(waits[:10], fmt.Sprintf("and %d more", len(waits)-10))
	}
	return "; " + strings.Join(waits, ", ")
}

func (n *narrator) tell(state head.State, line string, now time.Time) {
	quiet := now.Sub(n.told) < n.every
	n.line = line
	if state == n.state && quiet && !n.told.IsZero() {
		return
	}
	n.state, n.told = state, now
	fmt.Fprintf(n.out, "%s  %s\n", now.UTC().Format(time.TimeOnly), line)
}

// size writes bytes for people.
func size(bytes int64) string {
	switch {
	case bytes >= 1e9:
		return fmt.Sprintf("%.2f GB", float64(bytes)/1e9)
	case bytes >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(bytes)/1e6)
	}
	return fmt.Sprintf("%.1f kB", float64(bytes)/1e3)
}
