// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"encoding/json"
	"fmt"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/rows"
)

// view is what responses are made from: the plan, the location of its rows and the nodes that hold them. It is immutable, apart from what
// choose narrows in its copy.
type view struct {
	plan      *tablePlan
	key       string     // names the rows in tickets
	selection *selection // nil: all rows
	rows      int64      // of the selection
	filtered  int64      // rows for which the selection's filter is true; all rows without a filter
	places    *places    // of filtered rows
	nodes     []server
	loaded    *float64 // share of the splits that are loaded; nil: all
	narrow    string   // the shortest types of the columns' integers, see rows.Codes; empty while rows are loaded
	swept     bool     // not all rows stay in memory
}

// server is a data node that serves its rows.
type server struct {
	address     string
	incarnation string
	rows        int64
	columnBytes []int64
	bytes       int64 // of all columns
}

// places are the ranges of rows by data node. They are immutable.
type places struct {
	bounds []assign.Bounds
	json   []byte // bounds as JSON, encoded once: it is the longest part of most responses
}

// newPlaces returns the places of nodes with the given numbers of rows.
func newPlaces(counts []int64) (*places, error) {
	bounds := assign.BoundsOf(counts)
	text, err := json.Marshal(bounds)
	if err != nil {
		return nil, fmt.Errorf("encode the nodes' rows: %w", err)
	}
	return &places{bounds: bounds, json: text}, nil
}

// selection says which rows of a view a request selects.
type selection struct {
	protocol.Selection
	filter      string // names the filter's index on the data nodes; empty if the request has no filter
	fingerprint string
}

// loading returns the view of a cache that has joined and whose rows are known, with the share that is loaded now.
func (c *state) loading() (_ *view, err error) {
	if c.data.early == nil {
		if c.data.early, err = c.viewOf(c.expected); err != nil {
			return nil, err
		}
	}
	v, done := *c.data.early, 0
	for i := range c.data.nodes {
		done += c.data.nodes[i].count
	}
	loaded := float64(done) / float64(max(len(v.plan.splits), 1))
	v.loaded = &loaded
	return &v, nil
}

// joined reports whether all data nodes have joined, and said that they load their parts of the plan: before that, they know no tickets for it.
func (c *state) joined() bool {
	if c.data.plan == nil || c.data.failure != "" || c.stopping {
		return false
	}
	for i := range c.members {
		if c.members[i].session == nil || !c.data.nodes[i].begun {
			return false
		}
	}
	return true
}

// expected returns the rows of a node by the plan, and an estimate of their bytes by column.
func (c *state) expected(node int) (rows int64, columnBytes []int64) {
	p := c.data.plan
	for _, s := range p.splits[p.runs[node].First:p.runs[node].End] {
		rows += s.exact
	}
	columnBytes = make([]int64, p.Schema.NumFields())
	for i := range columnBytes {
		columnBytes[i] = p.sizes[node] / int64(len(columnBytes))
	}
	return rows, columnBytes
}

// serve returns the view of a ready cache.
func (c *state) serve() (*view, error) {
	v, err := c.viewOf(func(node int) (int64, []int64) { return c.data.nodes[node].rows, c.data.nodes[node].columnBytes })
	if err != nil {
		return nil, err
	}
	fits := make([][]byte, len(c.data.nodes))
	for i := range fits {
		fits[i] = c.data.nodes[i].fits
		v.swept = v.swept || c.data.nodes[i].swept
	}
	v.narrow = rows.Codes(v.plan.Schema, fits...)
	return v, nil
}

// viewOf returns the view of data nodes with the given rows and bytes by column.
func (c *state) viewOf(held func(node int) (rows int64, columnBytes []int64)) (*view, error) {
	v := &view{plan: c.data.plan, key: c.data.plan.dataset.Fingerprint, nodes: make([]server, len(c.members))}
	counts := make([]int64, len(c.members))
	for i := range c.members {
		m := &c.members[i]
		rows, columnBytes := held(i)
		v.nodes[i] = server{address: m.address, incarnation: m.incarnation, rows: rows, columnBytes: columnBytes}
		for _, b := range columnBytes {
			v.nodes[i].bytes += b
		}
		counts[i] = rows
		v.rows += rows
	}
	v.filtered = v.rows
	var err error
	v.places, err = newPlaces(counts)
	return v, err
}

// fingerprint is that of the rows of the selection.
func (v *view) fingerprint() string {
	if v.selection != nil {
		return v.selection.fingerprint
	}
	return v.plan.dataset.Fingerprint
}
