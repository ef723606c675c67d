// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package wait

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kubeflow/datacache/cacheserver/protocol"
)

// progressPrinter prints a line when the state changes, and one at intervals while only numbers grow. The Kubeflow SDK's
// get_job_logs(step="dataset-initializer") shows these lines.
type progressPrinter struct {
	name  string // of the cache, with which lines begin; "" for none
	out   io.Writer
	every time.Duration
	begin time.Time

	state   protocol.State // in the last line; "" while the head has not responded
	notice  string         // the controller's, in the last line
	line    string         // the last line
	printed time.Time
	loaded  struct { // when loading was first seen, and the rows and bytes loaded by then
		at     time.Time
		splits int
		bytes  int64
		rows   int64
	}
}

// last returns the last line, for the error that ends the wait.
func (n *progressPrinter) last() string {
	if n.line == "" {
		return n.prefix() + "the head has not been asked yet"
	}
	return n.prefix() + n.line
}

func (n *progressPrinter) prefix() string {
	if n.name == "" {
		return ""
	}
	return n.name + ": "
}

// unreachable prints that the head does not respond, and the controller's notice, which may say why.
func (n *progressPrinter) unreachable(err error, notice string, now time.Time) {
	line := "waiting for the cache's head: " + err.Error()
	if notice != "" {
		line = "waiting for the cache: " + notice
	}
	n.print("", notice, line, now)
}

// status prints the head's status and, while rows are missing, the controller's notice.
func (n *progressPrinter) status(s *protocol.Status, notice string, now time.Time) {
	line := strings.ToLower(string(s.State)) + ": " + s.Reason
	switch s.State {
	case protocol.StateReady:
		line = fmt.Sprintf("ready: %d rows, %s of %s (snapshot %d) in memory of %d data nodes after %s",
			s.Rows, formatBytes(s.Bytes), s.Table, s.Snapshot, len(s.Nodes), now.Sub(n.begin).Round(time.Second/10))
		if s.Table == "" { // files, not rows
			line = fmt.Sprintf("ready: %s after %s", s.Reason, now.Sub(n.begin).Round(time.Second/10))
		}
	case protocol.StateLoading:
		if s.Table != "" || s.Splits.Total > 0 {
			line = n.loading(s, now)
		}
	}
	if notice != "" && s.State != protocol.StateReady && s.State != protocol.StateFailed {
		line += "; the controller says: " + notice
	}
	n.print(s.State, notice, line, now)
}

// loading formats the progress: percent, splits, rows, bytes, rates, time left, and each node that isn't done.
func (n *progressPrinter) loading(s *protocol.Status, now time.Time) string {
	if n.loaded.at.IsZero() {
		n.loaded.at, n.loaded.splits, n.loaded.bytes, n.loaded.rows = now, s.Splits.Done, s.Bytes, s.Rows
	}
	line := fmt.Sprintf("%s, %d rows, %s", s.Reason, s.Rows, formatBytes(s.Bytes))
	seconds, done := now.Sub(n.loaded.at).Seconds(), s.Splits.Done-n.loaded.splits
	if seconds > 0 && done > 0 {
		left := time.Duration(seconds / float64(done) * float64(s.Splits.Total-s.Splits.Done) * float64(time.Second))
		line += fmt.Sprintf(" at %.0f rows/s and %s/s, %s left",
			float64(s.Rows-n.loaded.rows)/seconds, formatBytes(int64(float64(s.Bytes-n.loaded.bytes)/seconds)), left.Round(time.Second))
	}
	return line + nodes(s.Nodes)
}

// nodes describes the first ten data nodes that are not ready.
func nodes(all []protocol.NodeStatus) string {
	var waits []string
	for _, node := range all {
		if node.State != protocol.NodeReady {
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

// print prints a line: at once if the state or the notice has changed, otherwise if the last line is old enough.
func (n *progressPrinter) print(state protocol.State, notice, line string, now time.Time) {
	quiet := now.Sub(n.printed) < n.every
	n.line = line
	if state == n.state && notice == n.notice && quiet && !n.printed.IsZero() {
		return
	}
	n.state, n.notice, n.printed = state, notice, now
	fmt.Fprintf(n.out, "%s  %s%s\n", now.UTC().Format(time.TimeOnly), n.prefix(), line)
}

// formatBytes formats a number of bytes for people.
func formatBytes(bytes int64) string {
	switch {
	case bytes >= 1e9:
		return fmt.Sprintf("%.2f GB", float64(bytes)/1e9)
	case bytes >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(bytes)/1e6)
	}
	return fmt.Sprintf("%.1f kB", float64(bytes)/1e3)
}
