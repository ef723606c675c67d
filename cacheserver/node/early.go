// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/node/serve"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/sweep"
)

// mostEarly is the number of calls that may wait for rows of a node that loads.
const mostEarly = 4096

// errReleased ends calls that wait for rows of an assignment that was dropped.
var errReleased = status.Error(codes.Unavailable, "the data node is giving its rows up: ask the head again")

// cacheFailed ends calls that wait for rows of a cache that failed.
func cacheFailed(reason string) error {
	return status.Error(codes.Unavailable, "the cache failed: "+reason)
}

// lendEarly is lend while the rows are loaded, for a call that waits for them.
func (a *assignment) lendEarly(ticket protocol.Ticket) (l serve.Lent, err error) {
	layout := a.early.Layout()
	if layout == nil {
		_, _, _, err := a.early.Rows(a.stopped, nil) // why
		return l, err
	}
	columns, err := project(layout, ticket)
	if err != nil {
		return l, err
	}
	count, mean, ok := a.early.Expected()
	if !ok || count != ticket.Bounds.Len() {
		return l, status.Errorf(codes.FailedPrecondition, "ticket: for %d rows, this node expects %d; ask the head again", ticket.Bounds.Len(), count)
	}
	if a.waiting.Add(1) > mostEarly {
		a.waiting.Add(-1)
		return l, status.Errorf(codes.ResourceExhausted, "%d calls wait for rows of this data node, which still loads: ask again when it is ready", mostEarly)
	}
	if err := a.calls.Add(); err != nil {
		a.waiting.Add(-1)
		return l, err
	}
	done := func() {
		a.waiting.Add(-1)
		a.calls.Done()
	}
	swept := func() *sweep.Sweep { return a.sweep } // set before early ends
	return serve.Lent{Early: a.early, Swept: swept, Mean: mean, Columns: columns, Ticket: ticket, Calls: a.calls, Done: done}, nil
}

// project returns the columns of a ticket.
func project(layout *rows.Layout, ticket protocol.Ticket) (*rows.Projection, error) {
	if ticket.Columns == nil {
		return layout.All(), nil
	}
	columns, err := layout.Project(ticket.Columns)
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "ticket: columns: %v", err)
	}
	return columns, nil
}
