// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/protocol"
)

// view is what responses are made from: the plan, the location of its rows and the nodes that hold them. It is a copy.
type view struct {
	plan      *tablePlan
	selection *selection      // nil: all rows
	rows      int64           // of the selection
	filtered  int64           // rows that the selection's filter, if any, is true for
	bounds    []assign.Bounds // of filtered rows
	nodes     []load
	members   []member
}

// selection says which rows of a view a request selects.
type selection struct {
	protocol.Selection
	filter      string // names the filter's index on the data nodes; empty if the request has no filter
	fingerprint string
}
