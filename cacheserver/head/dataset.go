// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

// dataset is what a cluster knows of one dataset: its plan, and how far planning and loading it are. The cluster's mu guards all but the
// first two fields, which do not change.
type dataset struct {
	request string        // fingerprint of what is to be cached
	planned chan struct{} // closed once there is a plan

	plan        *tablePlan
	origin      origin           // of plan
	record      []byte           // of plan, for the nodes to keep
	footers     [2]int           // files planned, of all
	splits      []peer.SplitDone // by split; an empty hash was not reported yet
	ready       bool             // every row was in memory once
	progressed  time.Time        // when planning or loading last made progress
	trouble     string           // why planning makes no progress
	planFailure string           // why there will be no plan unless a node brings one
	failure     string           // why the cache failed
}

// load is how far one node is with its part of a dataset's plan.
type load struct {
	rows        int64
	bytes       int64
	columnBytes []int64
	done        map[int]bool // splits reported over the node's session
	trouble     string       // why it makes no progress
}

// loads says whether nodes load, or have loaded, the plan with this fingerprint.
func (d *dataset) loads(plan string) bool {
	return d.plan != nil && d.plan.fingerprint == plan && d.failure == ""
}

// report records the splits that a node has loaded. What a split holds must be the same at every load: the row indices that clients keep in
// their checkpoints depend on it. conflict says what is wrong with the rows of a split, err with the report.
func (d *dataset) report(node int, l *load, p peer.Progress, now time.Time) (conflict string, err error) {
	l.bytes, l.trouble = p.Bytes, p.Trouble
	if len(p.Done) > 0 {
		d.progressed = now
	}
	run := d.plan.runs[node]
	for _, done := range p.Done {
		if done.Split < run.First || done.Split >= run.End || done.Rows < 0 || done.Hash == "" {
			return "", status.Errorf(codes.InvalidArgument, "data node %d reports split %d, which is not its own", node, done.Split)
		}
		if conflict := d.conflict(done); conflict != "" {
			return conflict, nil
		}
		d.splits[done.Split] = done
		l.done[done.Split] = true
	}
	return "", nil
}

// conflict says what is wrong with the rows of a split, if anything.
func (d *dataset) conflict(done peer.SplitDone) string {
	split := d.plan.Splits[done.Split].Info()
	if split.Exact && done.Rows != split.Rows {
		return fmt.Sprintf("%s has %d rows, but %d were loaded", split, split.Rows, done.Rows)
	}
	before := d.splits[done.Split]
	if before.Hash != "" && (before.Hash != done.Hash || before.Rows != done.Rows) {
		return fmt.Sprintf("%s holds other rows than when it was first loaded (%d now, %d then); the file was changed, so start a new cache", split, done.Rows, before.Rows)
	}
	return ""
}

// loaded records that a node has loaded its part, all splits of which it must have reported.
func (d *dataset) loaded(node int, l *load, message peer.Loaded, now time.Time) error {
	run := d.plan.runs[node]
	var rows int64
	for _, done := range d.splits[run.First:run.End] {
		rows += done.Rows
	}
	if len(l.done) != run.Len() || message.Rows != rows || len(message.ColumnBytes) != d.plan.Schema.NumFields() {
		return status.Errorf(codes.InvalidArgument, "data node %d says it is loaded with %d rows, but reported %d of %d splits with %d rows", node, message.Rows, len(l.done), run.Len(), rows)
	}
	l.rows, l.bytes, l.columnBytes, l.trouble = message.Rows, message.Bytes, message.ColumnBytes, ""
	d.progressed = now
	return nil
}

// wants says whether the plan that a node holds should replace the dataset's.
func (d *dataset) wants(held *peer.Held) bool {
	if held == nil || held.Request != d.request || originOf(held) <= d.origin {
		return false
	}
	return held.Ready || d.plan == nil || held.Plan != d.plan.fingerprint
}

// adopt makes p the dataset's plan. done are the splits as they were when the cache was Ready, if the plan is from then.
func (d *dataset) adopt(p *tablePlan, from origin, encoded []byte, done []peer.SplitDone, now time.Time) {
	if d.origin == noPlan {
		close(d.planned)
	}
	d.plan, d.origin, d.record, d.progressed = p, from, encoded, now
	d.splits = make([]peer.SplitDone, len(p.Splits))
	copy(d.splits, done)
}

// assignment is a node's part of the plan.
func (d *dataset) assignment(node int, salt []byte) *peer.Assign {
	run := d.plan.runs[node]
	return &peer.Assign{
		Plan: d.plan.fingerprint, Request: d.request, Dataset: d.plan.dataset,
		Pin: d.plan.Version.Pin, Selection: d.plan.Version.Selection,
		First: run.First, Splits: d.plan.encoded[run.First:run.End], Salt: salt,
		Record: d.record, Ready: d.ready,
	}
}

// rowsOf is how many rows a node has reported, and how many splits there are for it.
func (d *dataset) rowsOf(node int, l *load) (rows int64, splits int) {
	for split := range l.done {
		rows += d.splits[split].Rows
	}
	return rows, d.plan.runs[node].Len()
}
