// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"encoding/json"
	"fmt"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/protocol"
)

// view is what responses are made from: the plan, the location of its rows and the nodes that hold them. It is immutable, apart from what
// choose narrows in its copy.
type view struct {
	plan      *tablePlan
	selection *selection // nil: all rows
	rows      int64      // of the selection
	filtered  int64      // rows for which the selection's filter is true; all rows without a filter
	places    *places    // of filtered rows
	nodes     []server
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

// serve returns the view of a ready cache.
func (c *state) serve() (*view, error) {
	v := &view{plan: c.data.plan, nodes: make([]server, len(c.members))}
	counts := make([]int64, len(c.members))
	for i := range c.members {
		m, l := &c.members[i], &c.data.nodes[i]
		v.nodes[i] = server{address: m.address, incarnation: m.incarnation, rows: l.rows, columnBytes: l.columnBytes}
		for _, b := range l.columnBytes {
			v.nodes[i].bytes += b
		}
		counts[i] = l.rows
		v.rows += l.rows
	}
	v.filtered = v.rows
	var err error
	v.places, err = newPlaces(counts)
	return v, err
}
