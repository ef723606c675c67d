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

// origin is where a cluster's plan comes from. A plan with a higher origin replaces one with a lower one, until the cache is Ready:
// see docs/adr/0004.
type origin int

const (
	noPlan    origin = iota
	ownPlan          // made from the current table
	heldPlan         // a data node holds rows of it
	readyPlan        // the cache was Ready with it, so clients may have read its rows
)

func originOf(held *peer.Held) origin {
	if held.Ready {
		return readyPlan
	}
	return heldPlan
}

// dataset is the state of one dataset in a cluster: its plan, and the progress of planning and loading. The cluster's mu protects all
// but the first two fields, which are immutable.
type dataset struct {
	request string        // fingerprint of the source and selection
	planned chan struct{} // closed when there is a plan

	nodes       []load // by node
	plan        *tablePlan
	origin      origin           // of plan
	record      []byte           // of plan, to be stored by the nodes
	footers     [2]int           // files planned so far, and all files
	splits      []peer.SplitDone // by split; the hash is empty until the split is reported
	ready       bool             // every row has been in memory
	progressed  time.Time        // when planning or loading last made progress
	trouble     string           // why planning makes no progress
	planFailure string           // why planning failed; a node may still bring a plan
	failure     string           // why the cache failed
	served      *view            // what responses are made from; nil until one is, and after a node was reset
}

// load is the state of one node with respect to a dataset: the plan whose record was requested from it, or its part of the plan and
// the progress of loading that.
type load struct {
	recalled    origin // origin of the plan whose record the head requested from the node; noPlan if it requested none
	assigned    bool   // its part was sent to it
	loaded      bool   // its part is in memory
	rows        int64  // of all its splits, once it is loaded
	reported    int64  // of the splits in done
	bytes       int64
	columnBytes []int64
	done        map[int]bool // splits reported over the node's session
	trouble     string       // why it makes no progress
}

// newDataset returns a dataset without a plan; request is the fingerprint of what is to be cached.
func newDataset(request string, nodes int, now time.Time) dataset {
	return dataset{request: request, planned: make(chan struct{}), nodes: make([]load, nodes), progressed: now}
}

// loads reports whether nodes are loading or have loaded the plan with this fingerprint.
func (d *dataset) loads(plan string) bool {
	return d.plan != nil && d.plan.fingerprint == plan && d.failure == ""
}

// report records the splits that a node has loaded. A split must contain the same rows at every load, since the row indices in
// clients' checkpoints depend on it. conflict describes a mismatch in the rows of a split, err an invalid report.
func (d *dataset) report(node int, p peer.Progress, now time.Time) (conflict string, err error) {
	l := &d.nodes[node]
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
		if !l.done[done.Split] {
			l.reported += done.Rows
		}
		l.done[done.Split] = true
	}
	return "", nil
}

// conflict describes the mismatch between a split and its earlier load, if there is one.
func (d *dataset) conflict(done peer.SplitDone) string {
	split := d.plan.Splits[done.Split]
	if split.Exact && done.Rows != split.Rows {
		return fmt.Sprintf("%s has %d rows, but %d were loaded", split, split.Rows, done.Rows)
	}
	before := d.splits[done.Split]
	if before.Hash != "" && (before.Hash != done.Hash || before.Rows != done.Rows) {
		return fmt.Sprintf("%s holds other rows than when it was first loaded (%d now, %d then); the file was changed, so start a new cache", split, done.Rows, before.Rows)
	}
	return ""
}

// loaded records that a node has loaded its part; it must have reported all splits of it.
func (d *dataset) loaded(node int, message peer.Loaded, now time.Time) error {
	l, run := &d.nodes[node], d.plan.runs[node]
	var rows int64
	for _, done := range d.splits[run.First:run.End] {
		rows += done.Rows
	}
	if len(l.done) != run.Len() || message.Rows != rows || len(message.ColumnBytes) != d.plan.Schema.NumFields() {
		return status.Errorf(codes.InvalidArgument, "data node %d says it is loaded with %d rows, but reported %d of %d splits with %d rows", node, message.Rows, len(l.done), run.Len(), rows)
	}
	d.served = nil
	l.loaded, l.rows, l.bytes, l.columnBytes, l.trouble = true, message.Rows, message.Bytes, message.ColumnBytes, ""
	d.progressed = now
	return nil
}

// wants reports whether the plan that a node holds should replace the dataset's.
func (d *dataset) wants(held *peer.Held) bool {
	if held == nil || held.Request != d.request || originOf(held) <= d.origin {
		return false
	}
	return held.Ready || d.plan == nil || held.Plan != d.plan.fingerprint
}

// adopt makes p the dataset's plan in place of any other. If the cache was Ready with this plan before, done has the splits from that
// time.
func (d *dataset) adopt(p *tablePlan, from origin, encoded []byte, done []peer.SplitDone, now time.Time) {
	if d.origin == noPlan {
		close(d.planned)
	}
	d.plan, d.origin, d.record, d.progressed, d.served = p, from, encoded, now, nil
	d.splits = make([]peer.SplitDone, len(p.Splits))
	copy(d.splits, done)
	if from == readyPlan && len(done) == len(p.Splits) {
		d.ready = true
	}
	d.failure, d.planFailure = "", ""
}

// complete records that every row is in memory. The record of the plan then has the hashes of all splits: from now on clients may
// use these rows, so they must be reproducible, whichever process is lost.
func (d *dataset) complete() error {
	encoded, err := encodeRecord(d.plan, d.splits)
	if err == nil {
		d.ready, d.origin, d.record = true, readyPlan, encoded
	}
	return err
}

// reset clears the state of a node, which then starts anew.
func (d *dataset) reset(node int) { d.nodes[node], d.served = load{done: map[int]bool{}}, nil }

// assign returns a node's part of the plan and records that the node is expected to load it.
func (d *dataset) assign(node int, salt []byte) *peer.Assign {
	d.reset(node)
	d.nodes[node].assigned = true
	run := d.plan.runs[node]
	return &peer.Assign{
		Plan: d.plan.fingerprint, Request: d.request, Dataset: d.plan.dataset,
		Pin: d.plan.Version.Pin, Selection: d.plan.Version.Selection,
		First: run.First, Splits: d.plan.encoded[run.First:run.End], Salt: salt,
		Record: d.record, Ready: d.ready,
	}
}
