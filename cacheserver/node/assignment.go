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
	"github.com/kubeflow/datacache/cacheserver/pick"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/internal/tracing"
)

// assignment is a node's part of one plan: being loaded, loaded, or failed. It owns its arena until close.
type assignment struct {
	spec     peer.Assign // as the head sent it
	store    *objstore.Store
	arena    *rows.Arena
	calls    *calls
	indexes  *indexes
	progress progress
	building context.Context // of evaluating filters; canceled by close
	builds   sync.WaitGroup
	cancel   context.CancelFunc // of loading and building
	ended    chan struct{}      // closed when loading has ended

	// Set by loading before ended is closed, and only read after that.
	layout *rows.Layout
	rows   *rows.Rows
	err    error

	mu     sync.Mutex
	record []byte // of the whole plan, for the head
	ready  bool   // the whole cache was Ready with the plan
}

// startAssignment starts to load what the head assigned of a source, after the previous assignment is freed. It stops when ctx ends;
// see close.
func (n *Node) startAssignment(ctx context.Context, from source.Source, spec peer.Assign, old *assignment) *assignment {
	ctx, cancel := context.WithCancel(ctx)
	a := &assignment{
		spec: spec, record: spec.Record, ready: spec.Ready, store: n.cfg.Store, arena: rows.NewArena(n.cfg.Budget),
		calls: newCalls(ctx), indexes: newIndexes(&n.cfg), building: ctx, cancel: cancel, ended: make(chan struct{}),
	}
	go func() {
		defer close(a.ended)
		a.load(ctx, n, from, old)
	}()
	return a
}

// load frees old and loads the rows.
func (a *assignment) load(ctx context.Context, n *Node, from source.Source, old *assignment) {
	ctx, span := n.startPart(ctx, a.spec)
	defer func() { tracing.End(span, a.err) }()
	if old != nil {
		_, wait := tracing.Child(ctx, "wait for streams")
		a.replace(ctx, old)
		wait.End()
	}
	a.layout, a.rows, a.err = newLoad(&n.cfg, from, a).run(ctx)
	_, free := tracing.Child(ctx, "free memory")
	defer free.End()
	n.cfg.Store.Idle()   // its connections are not needed any more
	debug.FreeOSMemory() // otherwise memory used for decoding would stay resident for minutes
	limitHeap(n.cfg.Budget, 0)
}

// streamsEnd is how long the streams of a replaced assignment may take to end. After that, memory that they still hold may be missing
// for the new one.
const streamsEnd = 30 * time.Second

// replace frees old: it ends the streams, whose clients could otherwise keep its memory in use indefinitely.
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

// loaded returns the assignment's rows if they are all in memory, otherwise nil.
func (a *assignment) loaded() *rows.Rows {
	select {
	case <-a.ended:
		return a.rows
	default:
		return nil
	}
}

// failure returns why loading has failed, or nil.
func (a *assignment) failure() error {
	select {
	case <-a.ended:
		return a.err
	default:
		return nil
	}
}

// trouble returns one line that says why loading makes no progress: the reads being retried, or a step of loading.
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

// held returns the plan that the node holds, for the head.
func (a *assignment) held() *peer.Held {
	if a.failure() != nil {
		return nil
	}
	_, ready := a.recordKept()
	return &peer.Held{Plan: a.spec.Plan, Request: a.spec.Request, Ready: ready}
}

// keepRecord stores the head's record of the plan, replacing an earlier one.
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

// close stops loading, waits for its end, and frees the memory when the last stream has ended.
func (a *assignment) close() {
	a.cancel()
	<-a.ended
	a.builds.Wait()
	a.indexes.close()
	if a.rows != nil {
		a.rows.Release()
	}
	a.arena.Release()
}

// admitted is a loaded assignment in use by one call, which must call done once.
type admitted struct {
	rows    *rows.Rows
	columns *rows.Projection // the ticket's
	index   *pick.Index      // of the ticket's filter; nil: without one
	ticket  protocol.Ticket
	calls   *calls

	endIndex func() // ends the use of index
}

// done releases the rows.
func (l admitted) done() {
	l.endIndex()
	l.rows.Release()
	l.calls.done()
}

// lend returns the rows of a ticket for this assignment, for use by one call.
func (a *assignment) lend(ticket protocol.Ticket) (admitted, error) {
	rows := a.loaded()
	if rows == nil {
		return admitted{}, status.Errorf(codes.Unavailable, "data node %d is still loading", ticket.Node)
	}
	l := admitted{rows: rows, columns: a.layout.All(), ticket: ticket, calls: a.calls, endIndex: func() {}}
	if ticket.Columns != nil {
		var err error
		if l.columns, err = a.layout.Project(ticket.Columns); err != nil {
			return admitted{}, status.Errorf(codes.FailedPrecondition, "ticket: columns: %v", err)
		}
	}
	held := rows.Len()
	if ticket.Filter != "" {
		var err error
		if l.index, l.endIndex, err = a.indexes.lend(ticket.Filter); err != nil {
			return admitted{}, err
		}
		held = int64(l.index.Len())
	}
	if ticket.Bounds.Len() != held {
		l.endIndex()
		return admitted{}, status.Errorf(codes.FailedPrecondition, "ticket: for %d rows, this node holds %d; ask the head again", ticket.Bounds.Len(), held)
	}
	if !rows.Retain() {
		l.endIndex()
		return admitted{}, status.Errorf(codes.Unavailable, "data node %d is giving its rows up", ticket.Node)
	}
	if err := a.calls.add(); err != nil {
		l.endIndex()
		rows.Release()
		return admitted{}, err
	}
	return l, nil
}
