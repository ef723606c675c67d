// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/protocol"
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
// but the first three fields, which are immutable.
type dataset struct {
	request string          // fingerprint of the source and selection
	planned chan struct{}   // closed when there is a plan
	first   *protocol.First // the epoch whose rows are loaded first; nil: that is not known

	nodes       []load // by node
	plan        *tablePlan
	origin      origin          // of plan
	outline     []byte          // of plan, encoded, to be kept by the nodes
	footers     [2]int          // files planned so far, and all files
	ready       bool            // every row has been in memory
	progressed  time.Time       // when planning or loading last made progress
	trouble     string          // why planning makes no progress
	planFailure string          // why planning failed; a node may still bring a plan
	failure     string          // why the cache failed
	served      *view           // what responses are made from; nil until one is, and after a node was reset
	early       *view           // likewise, while the rows are loaded
	counted     []assign.Bounds // of the nodes, by plan; nil until firstEpoch needs them
}

// load is the state of one node with respect to a dataset: the plan that it holds, if the head wants that, or its part of the plan and the
// progress of loading that.
type load struct {
	recalled    origin // of the plan that the node holds, while the head gathers it; noPlan if it does not
	assigned    bool   // its part was sent to it
	begun       bool   // it has reported to load its part
	loaded      bool   // its part is in memory
	rows        int64  // of all its splits, once it is loaded
	reported    int64  // of the splits in done
	bytes       int64
	columnBytes []int64
	fits        []byte // of the columns' integers, as rows.Rows.Fits
	swept       bool   // not all of its rows stay in memory
	done        []bool // splits of its part reported over the node's session
	count       int    // of them
	trouble     string // why it makes no progress
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
	l.begun, l.bytes, l.trouble = true, p.Bytes, p.Trouble
	if len(p.Done) > 0 {
		d.progressed = now
	}
	run := d.plan.runs[node]
	if len(p.Done) > 0 && !l.assigned {
		return "", status.Errorf(codes.InvalidArgument, "data node %d reports splits before it was assigned any", node)
	}
	for _, done := range p.Done {
		if done.Split < run.First || done.Split >= run.End || done.Rows < 0 || len(done.Hash) != digestSize {
			return "", status.Errorf(codes.InvalidArgument, "data node %d reports split %d with %d rows and a hash of %d bytes, which is not its own: want a split of %d to %d and %d bytes", node, done.Split, done.Rows, len(done.Hash), run.First, run.End-1, digestSize)
		}
		if conflict := d.conflict(done); conflict != "" {
			return conflict, nil
		}
		now := &d.plan.splits[done.Split]
		now.rows, now.loaded = done.Rows, true
		copy(now.hash[:], done.Hash)
		if first := done.Split - run.First; !l.done[first] {
			l.done[first] = true
			l.reported += done.Rows
			l.count++
		}
	}
	return "", nil
}

// conflict describes the mismatch between a split and its earlier load, if there is one.
func (d *dataset) conflict(done peer.SplitDone) string {
	before := &d.plan.splits[done.Split]
	var wrong string
	switch {
	case before.exact >= 0 && done.Rows != before.exact:
		wrong = fmt.Sprintf("has %d rows, but %d were loaded", before.exact, done.Rows)
	case before.loaded && (!bytes.Equal(before.hash[:], done.Hash) || before.rows != done.Rows):
		wrong = fmt.Sprintf("holds other rows than when it was first loaded (%d now, %d then); the file was changed, so start a new cache", done.Rows, before.rows)
	default:
		return ""
	}
	split, err := d.plan.split(done.Split)
	if err != nil {
		return fmt.Sprintf("split %d %s", done.Split, wrong)
	}
	return fmt.Sprintf("%s %s", split, wrong)
}

// loaded records that a node has loaded its part; it must have reported all splits of it. conflict describes a mismatch with the rows that
// the cache had when it was Ready.
func (d *dataset) loaded(node int, message peer.Loaded, now time.Time) (conflict string, err error) {
	l, run := &d.nodes[node], d.plan.runs[node]
	var rows int64
	splits := d.plan.splits[run.First:run.End]
	for i := range splits {
		rows += splits[i].rows
	}
	columns := d.plan.Schema.NumFields()
	if l.count != run.Len() || message.Rows != rows || len(message.ColumnBytes) != columns || len(message.Fits) != columns {
		return "", status.Errorf(codes.InvalidArgument, "data node %d says it is loaded with %d rows, but reported %d of %d splits with %d rows", node, message.Rows, l.count, run.Len(), rows)
	}
	if sums := d.plan.outline.Loaded; sums != nil && !bytes.Equal(digest(encodeLoaded(splits)), sums[node]) {
		return fmt.Sprintf("its part of %d splits holds other rows than when it was first loaded; a file was changed, so start a new cache", run.Len()), nil
	}
	d.served = nil
	l.loaded, l.rows, l.bytes, l.trouble = true, message.Rows, message.Bytes, ""
	l.columnBytes, l.fits, l.swept = message.ColumnBytes, message.Fits, message.Swept
	d.progressed = now
	return "", nil
}

// wants reports whether the plan that a node holds should replace the dataset's.
func (d *dataset) wants(held *peer.Held) bool {
	if held == nil || held.Request != d.request || originOf(held) <= d.origin {
		return false
	}
	return held.Ready || d.plan == nil || held.Plan != d.plan.fingerprint
}

// adopt makes p the dataset's plan in place of any other.
func (d *dataset) adopt(p *tablePlan, from origin, now time.Time) error {
	encoded, err := json.Marshal(p.outline)
	if err != nil {
		return fmt.Errorf("encode the plan's outline: %w", err)
	}
	if d.origin == noPlan {
		close(d.planned)
	}
	d.plan, d.origin, d.outline, d.progressed, d.served, d.early, d.counted = p, from, encoded, now, nil, nil, nil
	d.ready = from == readyPlan
	d.failure, d.planFailure = "", ""
	return nil
}

// complete records that every row is in memory. The outline of the plan then has the digests of all splits' hashes: from now on clients may
// use these rows, so they must be reproducible, whichever process is lost.
func (d *dataset) complete() error {
	var err error
	if d.plan.outline.Loaded, err = d.plan.sums(); err != nil {
		return err
	}
	encoded, err := json.Marshal(d.plan.outline)
	if err != nil {
		return fmt.Errorf("encode the plan's outline: %w", err)
	}
	d.ready, d.origin, d.outline = true, readyPlan, encoded
	return nil
}

// reset clears the state of a node, which then starts anew.
func (d *dataset) reset(node int) { d.nodes[node], d.served, d.early = load{}, nil, nil }

// assign returns a node's part of the plan, and the parts that it is to keep besides what it has, and records that the node is expected to
// load its part. held is what the node held when it joined, nil if it has been assigned another plan since.
func (d *dataset) assign(node int, salt []byte, held *peer.Held) (*peer.Assign, []*peer.Keep) {
	d.reset(node)
	run := d.plan.runs[node]
	d.nodes[node].assigned, d.nodes[node].done = true, make([]bool, run.Len())
	a := &peer.Assign{
		Plan: d.plan.fingerprint, Request: d.request, Dataset: d.plan.dataset,
		Pin: d.plan.Version.Pin, Selection: d.plan.Version.Selection,
		First: run.First, Splits: run.Len(), Part: d.plan.parts[node], Salt: salt,
		Outline: d.outline, Ready: d.ready, FirstEpoch: d.firstEpoch(node),
	}
	holds := held != nil && held.Plan == a.Plan
	if holds {
		a.Part = nil
	}
	var keeps []*peer.Keep
	for _, part := range assign.Kept(node, len(d.nodes)) {
		if holds && held.Ready == d.ready && slices.Contains(held.Parts, part) {
			continue
		}
		k := d.loadedPart(part)
		if part != node {
			k.Splits = d.plan.parts[part]
		}
		if len(k.Splits)+len(k.Loaded) > 0 {
			keeps = append(keeps, k)
		}
	}
	return a, keeps
}

// firstEpoch says which of a node's splits are needed first; nil if that is not known.
func (d *dataset) firstEpoch(node int) *peer.First {
	if d.first == nil || d.plan.uncounted > 0 {
		return nil
	}
	if d.counted == nil {
		counts := make([]int64, len(d.nodes))
		for i, run := range d.plan.runs {
			for _, s := range d.plan.splits[run.First:run.End] {
				counts[i] += s.exact
			}
		}
		d.counted = assign.BoundsOf(counts)
	}
	return &peer.First{First: *d.first, Rows: d.counted[len(d.counted)-1][1], Own: d.counted[node]}
}

// loadedPart is a part's loaded rows for a node that keeps them, once the cache was Ready.
func (d *dataset) loadedPart(part int) *peer.Keep {
	k := &peer.Keep{Plan: d.plan.fingerprint, Part: part}
	if run := d.plan.runs[part]; d.ready {
		k.Loaded = encodeLoaded(d.plan.splits[run.First:run.End])
	}
	return k
}
