// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/node/index"
	"github.com/kubeflow/datacache/cacheserver/node/load"
	"github.com/kubeflow/datacache/cacheserver/node/serve"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/pick"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/sweep"
	"github.com/kubeflow/datacache/internal/tracing"
)

// assignment is a node's part of one plan: being loaded, loaded, or failed. It owns its arena until close.
type assignment struct {
	spec     peer.Assign // as the head sent it
	store    *objstore.Store
	arena    *offheap.Arena
	calls    *serve.Calls
	indexes  *index.Set
	progress load.Progress
	early    *load.Early
	stopped  context.Context    // of loading, and of making indexes; canceled by close
	cancel   context.CancelFunc // of stopped
	ended    chan struct{}      // closed when loading has ended

	// Set by loading before ended is closed, and only read after that.
	layout *rows.Layout
	rows   *rows.Rows
	sweep  *sweep.Sweep // nil: all rows stay in memory
	err    error
	pinned sync.WaitGroup

	waiting atomic.Int64 // calls that were lent rows before they were all loaded

	mu      sync.Mutex
	outline []byte       // of the whole plan, for the head
	kept    map[int]kept // likewise parts of the plan
	ready   bool         // the whole cache was Ready with the plan
}

// kept is a part of a plan that the node keeps for the head.
type kept struct{ splits, loaded []byte }

// startAssignment starts to load what the head assigned, after the previous assignment is freed. It stops when ctx ends;
// see close.
func (n *Node) startAssignment(ctx context.Context, spec peer.Assign, old *assignment) *assignment {
	ctx, cancel := context.WithCancel(ctx)
	a := &assignment{
		spec: spec, outline: spec.Outline, ready: spec.Ready, kept: map[int]kept{n.cfg.Index: {splits: spec.Part}}, store: n.cfg.Store, arena: offheap.NewArena(n.cfg.Budget),
		calls: serve.NewCalls(ctx), indexes: index.New(ctx, n.cfg.Budget, n.cfg.FilterMemory, n.cfg.Work, n.cfg.Metrics),
		early: load.NewEarly(spec.Splits), stopped: ctx, cancel: cancel, ended: make(chan struct{}),
	}
	if n.cfg.Spill != nil {
		a.arena.Paged()
	}
	go func() {
		defer close(a.ended)
		a.load(ctx, n, old)
	}()
	return a
}

// startPart starts the span of loading an assignment, below the head's.
func (n *Node) startPart(ctx context.Context, spec peer.Assign) (context.Context, trace.Span) {
	if n.cfg.Tracer == nil {
		return tracing.Start(ctx, nil, "")
	}
	return tracing.Start(tracing.WithParent(ctx, spec.Trace), n.cfg.Tracer, "load part", trace.WithAttributes(
		attribute.Int("datacache.node", n.cfg.Index), attribute.Int("datacache.splits", spec.Splits)))
}

// load frees old and loads the rows.
func (a *assignment) load(ctx context.Context, n *Node, old *assignment) {
	ctx, span := n.startPart(ctx, a.spec)
	defer func() { tracing.End(span, a.err) }()
	if old != nil {
		_, wait := tracing.Child(ctx, "wait for streams")
		a.replace(ctx, old)
		wait.End()
	}
	a.clearSpill(n)
	cfg := &load.Config{Config: n.cfg.Config, Workers: n.cfg.Workers, Limiter: n.cfg.Decoding, Spill: n.cfg.Spill, SpillRemoved: n.cfg.SpillRemoved, Sharers: n.cfg.Sharers}
	a.layout, a.rows, a.err = load.Run(ctx, cfg, a.spec, a.arena, &a.progress, a.early)
	others := a.startServing(ctx, n)
	switch {
	case a.err == nil:
		a.early.End(a.rows, nil)
	case ctx.Err() == nil:
		a.early.End(nil, cacheFailed(fmt.Sprintf("data node %d (%s): %v", n.cfg.Index, n.cfg.Advertise, a.err)))
	default:
		a.early.End(nil, errReleased)
	}
	_, free := tracing.Child(ctx, "free memory")
	defer free.End()
	n.cfg.Store.Idle()   // its connections are not needed any more
	debug.FreeOSMemory() // otherwise memory used for decoding would stay resident for minutes
	n.cfg.Budget.LimitHeap(others)
}

// streamsEnd is how long the streams of a replaced assignment may take to end. After that, memory that they still hold may be missing
// for the new one.
const streamsEnd = 30 * time.Second

// replace frees old: it ends the streams, whose clients could otherwise keep its memory in use indefinitely.
func (a *assignment) replace(ctx context.Context, old *assignment) {
	idle := old.calls.End()
	old.close()
	a.progress.Note(load.Whole, fmt.Sprintf("waiting for %d streams of the former plan to end", old.calls.Number()))
	defer a.progress.Note(load.Whole, "")
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
	if trouble := a.progress.Trouble(); trouble != "" {
		return trouble
	}
	return a.store.Trouble()
}

// describe sets the progress and the state of loading in a status.
func (a *assignment) describe(s *Status) {
	s.Splits.Total = a.spec.Splits
	s.Splits.Done, s.Rows, s.Bytes = a.progress.Loaded()
	switch err := a.failure(); {
	case err != nil:
		s.State, s.Reason = "Failed", err.Error()
	case a.loaded() != nil:
		s.State, s.Reason = "Ready", "ready"
	default:
		s.State, s.Reason = "Loading", fmt.Sprintf("loading (%d/%d splits)", s.Splits.Done, s.Splits.Total)
		if trouble := a.trouble(); trouble != "" {
			s.Reason += ": " + trouble
		}
	}
}

// held returns the plan that the node holds, for the head.
func (a *assignment) held() *peer.Held {
	if a.failure() != nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return &peer.Held{Plan: a.spec.Plan, Request: a.spec.Request, Ready: a.ready, Parts: slices.Sorted(maps.Keys(a.kept))}
}

// keepOutline stores the head's outline of the plan.
func (a *assignment) keepOutline(outline []byte, ready bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.outline, a.ready = outline, ready
}

// keep stores a part of the plan.
func (a *assignment) keep(k peer.Keep) {
	a.mu.Lock()
	defer a.mu.Unlock()
	part := a.kept[k.Part]
	if len(k.Splits) > 0 {
		part.splits = k.Splits
	}
	if len(k.Loaded) > 0 {
		part.loaded = k.Loaded
	}
	a.kept[k.Part] = part
}

// recalled returns a part of the plan, or its outline.
func (a *assignment) recalled(part int) kept {
	a.mu.Lock()
	defer a.mu.Unlock()
	if part == peer.Outline {
		return kept{splits: a.outline}
	}
	return a.kept[part]
}

// close stops loading, waits for its end, and frees the memory when the last stream has ended.
func (a *assignment) close() {
	a.cancel()
	<-a.ended
	a.indexes.Close()
	a.pinned.Wait()
	if a.sweep != nil {
		a.sweep.Close()
	}
	if a.rows != nil {
		a.rows.Release()
	}
	a.arena.Release()
}

// lend returns the rows of a ticket for this assignment, for use by one call.
func (a *assignment) lend(ticket protocol.Ticket) (serve.Lent, error) {
	rows := a.loaded()
	if rows == nil && ticket.Early {
		return a.lendEarly(ticket)
	}
	if rows == nil {
		return serve.Lent{}, status.Errorf(codes.Unavailable, "data node %d is still loading", ticket.Node)
	}
	l, err := lend(ticket, a.layout, rows, a.indexes, a.calls)
	l.Sweep = a.sweep
	return l, err
}

// lend returns the rows of a ticket, for use by one call.
func lend(ticket protocol.Ticket, layout *rows.Layout, rows *rows.Rows, indexes *index.Set, calls *serve.Calls) (l serve.Lent, err error) {
	columns, err := project(layout, ticket)
	if err != nil {
		return l, err
	}
	if ticket.Narrow != "" {
		if columns, err = rows.Narrow(columns, ticket.Narrow); err != nil {
			return l, status.Errorf(codes.FailedPrecondition, "ticket: %v", err)
		}
	}
	held, index, endIndex := rows.Len(), (*pick.Index)(nil), func() {}
	if ticket.Filter != "" {
		if index, endIndex, err = indexes.Lend(ticket.Filter); err != nil {
			return l, err
		}
		held = int64(index.Len())
	}
	switch {
	case ticket.Bounds.Len() != held:
		err = status.Errorf(codes.FailedPrecondition, "ticket: for %d rows, this node holds %d; ask the head again", ticket.Bounds.Len(), held)
	case !rows.Retain():
		err = status.Errorf(codes.Unavailable, "data node %d is giving its rows up", ticket.Node)
	default:
		if err = calls.Add(); err != nil {
			rows.Release()
		}
	}
	if err != nil {
		endIndex()
		return l, err
	}
	done := func() {
		endIndex()
		rows.Release()
		calls.Done()
	}
	return serve.Lent{Rows: rows, Columns: columns, Index: index, Ticket: ticket, Calls: calls, Done: done}, nil
}
