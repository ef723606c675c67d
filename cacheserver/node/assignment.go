// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/source"
)

// assignment is a node's part of one plan: being loaded, loaded, or failed. It owns its arena until close.
type assignment struct {
	spec     peer.Assign // as the head sent it
	store    *objstore.Store
	arena    *rows.Arena
	calls    *calls
	progress progress
	cancel   context.CancelFunc
	ended    chan struct{} // closed when loading is over

	// Set by loading before ended is closed, read only after.
	layout *rows.Layout
	rows   *rows.Rows
	err    error

	mu     sync.Mutex
	record []byte // the head's, of the whole plan
	ready  bool   // the whole cache was Ready with the plan
}

// startAssignment begins to load what the head assigned of a source, once the assignment that had its place is freed. It ends early
// with ctx; see close.
func (n *Node) startAssignment(ctx context.Context, from source.Source, spec peer.Assign, old *assignment) *assignment {
	ctx, cancel := context.WithCancel(ctx)
	a := &assignment{
		spec: spec, record: spec.Record, ready: spec.Ready, store: n.cfg.Store, arena: rows.NewArena(n.cfg.Budget),
		calls: newCalls(ctx), cancel: cancel, ended: make(chan struct{}),
	}
	go func() {
		defer close(a.ended)
		if old != nil {
			a.replace(ctx, old)
		}
		a.layout, a.rows, a.err = newLoad(&n.cfg, from, a).run(ctx)
		n.cfg.Store.Idle()   // its connections are of no use any more
		debug.FreeOSMemory() // what decoding needed would stay resident for minutes
		n.limitHeap()
	}()
	return a
}

// streamsEnd is how long the streams of an assignment that is replaced may take to end. What they hold after that may leave
// no room for the new one.
const streamsEnd = 30 * time.Second

// replace frees old: it ends the streams, which would keep its memory as long as their clients like.
func (a *assignment) replace(ctx context.Context, old *assignment) {
	idle := old.calls.endAll()
	old.close()
	a.progress.note(noSplit, fmt.Sprintf("waiting for %d streams of the former plan to end", old.calls.number()))
	defer a.progress.note(noSplit, "")
	select {
	case <-idle:
	case <-ctx.Done():
	case <-time.After(streamsEnd):
	}
}

// loaded gives the assignment's rows once they are all in memory, or nil.
func (a *assignment) loaded() *rows.Rows {
	select {
	case <-a.ended:
		return a.rows
	default:
		return nil
	}
}

// failure is why loading ended without success, or nil.
func (a *assignment) failure() error {
	select {
	case <-a.ended:
		return a.err
	default:
		return nil
	}
}

// trouble says in one line why loading does not get on: of the reads that are tried again, or of the first step.
func (a *assignment) trouble() string {
	select {
	case <-a.ended:
		return ""
	default:
	}
	if trouble := a.progress.trouble(); trouble != "" {
		return trouble
	}
	return a.store.Trouble()
}

// held tells a head what the node works on.
func (a *assignment) held() *peer.Held {
	if a.failure() != nil {
		return nil
	}
	_, ready := a.recordKept()
	return &peer.Held{Plan: a.spec.Plan, Request: a.spec.Request, Ready: ready}
}

// keepRecord keeps the head's record of the plan, in place of an earlier one.
func (a *assignment) keepRecord(record []byte, ready bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.record, a.ready = record, ready
}

func (a *assignment) recordKept() (record []byte, ready bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.record, a.ready
}

// close stops loading, waits for it to end and lets the memory go as soon as the last stream has.
func (a *assignment) close() {
	a.cancel()
	<-a.ended
	if a.rows != nil {
		a.rows.Release()
	}
	a.arena.Release()
}

// admitted is a loaded assignment in use by one call, which calls done once.
type admitted struct {
	layout *rows.Layout
	rows   *rows.Rows
	ticket protocol.Ticket
	calls  *calls
}

// done gives the rows back.
func (l admitted) done() {
	l.rows.Release()
	l.calls.done()
}

// lend lends the rows that a ticket for this assignment is about.
func (a *assignment) lend(ticket protocol.Ticket) (admitted, error) {
	rows := a.loaded()
	if rows == nil {
		return admitted{}, status.Errorf(codes.Unavailable, "data node %d is still loading", ticket.Node)
	}
	if ticket.Bounds.Len() != rows.Len() {
		return admitted{}, status.Errorf(codes.FailedPrecondition, "ticket: for %d rows, this node holds %d; ask the head again", ticket.Bounds.Len(), rows.Len())
	}
	if !rows.Retain() {
		return admitted{}, status.Errorf(codes.Unavailable, "data node %d is giving its rows up", ticket.Node)
	}
	if err := a.calls.add(); err != nil {
		rows.Release()
		return admitted{}, err
	}
	return admitted{layout: a.layout, rows: rows, ticket: ticket, calls: a.calls}, nil
}
