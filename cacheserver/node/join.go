// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/node/index"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/transport"
)

const (
	rejoinFirst = 100 * time.Millisecond
	rejoinMost  = time.Second
)

// keepJoined joins the head, and joins again whenever the connection breaks, until ctx ends.
func (n *Node) keepJoined(ctx context.Context) error {
	conn, err := transport.Dial(n.cfg.Head, n.cfg.TLS, n.cfg.Dial)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if n.cfg.JoinAfter > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(n.cfg.JoinAfter):
		}
	}
	n.stage.Restore()
	wait := rejoinFirst
	for ctx.Err() == nil {
		begin := time.Now()
		err := n.session(ctx, conn)
		if errors.Is(err, errUnwanted) {
			return err
		}
		if time.Since(begin) > rejoinMost {
			wait = rejoinFirst
		}
		if reason := status.Convert(err).Message(); n.setJoined(false, reason) && ctx.Err() == nil {
			n.cfg.Log.Warn("not joined", "head", n.cfg.Head, "reason", reason)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, rejoinMost)
		conn.ResetConnectBackoff()
	}
	return nil
}

// setJoined records whether the node has joined, and reports whether that or the refusal has changed.
func (n *Node) setJoined(joined bool, refusal string) (news bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	news = n.joined != joined || n.refusal != refusal
	n.joined, n.refusal = joined, refusal
	return news
}

// session runs one stream to the head, from hello to its end.
func (n *Node) session(ctx context.Context, conn *grpc.ClientConn) error {
	// The stream ends a moment after ctx, so that the node can tell the head why it leaves.
	streamCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stream, err := peer.Join(streamCtx, conn, n.cfg.Secret)
	if err != nil {
		return err
	}
	hello := peer.Hello{V: peer.Version, Index: n.cfg.Index, Incarnation: n.incarnation, Address: n.cfg.Advertise, Machine: n.cfg.Machine, Disk: n.disk != nil}
	if a := n.current(); a != nil {
		hello.Held = a.held()
	}
	if err := stream.Send(peer.ToHead{Hello: &hello}); err != nil {
		return endOf(stream, err)
	}
	if err := sendAll(stream, n.stage.Inventory()); err != nil {
		return endOf(stream, err)
	}
	incoming := make(chan peer.ToNode)
	ended := make(chan error, 1)
	go func() { ended <- receive(stream, incoming) }()
	return n.converse(ctx, stream, incoming, ended)
}

func (n *Node) current() *assignment {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.assigned
}

// receive forwards the head's messages until the stream ends.
func receive(stream peer.NodeStream, incoming chan<- peer.ToNode) error {
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		select {
		case incoming <- message:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// endOf returns the status with which the head ended the stream; the error of a failed send does not contain it.
func endOf(stream peer.NodeStream, sendErr error) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	return sendErr
}

// converse processes the head's messages and reports progress until either side ends the session.
func (n *Node) converse(ctx context.Context, stream peer.NodeStream, incoming <-chan peer.ToNode, ended <-chan error) error {
	heartbeat := time.NewTicker(peer.HeartbeatEvery)
	defer heartbeat.Stop()
	r := reporter{stream: stream, answers: make(chan peer.ToHead), opened: &opened{}, vitals: n.vitals}
	for {
		var loadEnds <-chan struct{}
		if r.of != nil && !r.concluded {
			loadEnds = r.of.ended
		}
		select {
		case <-ctx.Done():
			_ = stream.Send(peer.ToHead{Leaving: &peer.Leaving{Reason: "data node stopped as told"}})
			return waitFor(ended, time.Second)
		case err := <-ended:
			return err
		case m := <-incoming:
			if err := n.obey(ctx, &r, m); err != nil {
				return err
			}
		case m := <-r.answers:
			if err := stream.Send(m); err != nil {
				return err
			}
		case <-n.stage.News():
			if err := sendAll(stream, n.stage.Reports()); err != nil {
				return err
			}
		case <-loadEnds:
			if err := r.conclude(n); err != nil {
				return err
			}
		case <-heartbeat.C:
			if err := r.progress(); err != nil {
				return err
			}
		}
	}
}

func waitFor(ended <-chan error, most time.Duration) error {
	select {
	case err := <-ended:
		return err
	case <-time.After(most):
		return nil
	}
}

// obey carries out a message of the head.
func (n *Node) obey(ctx context.Context, r *reporter, m peer.ToNode) error {
	switch {
	case m.Assign != nil:
		r.start(n.accept(ctx, *m.Assign))
		n.setJoined(true, "")
		return r.progress()
	case m.Ready != nil:
		if a := n.holding(m.Ready.Plan); a != nil {
			a.keepOutline(m.Ready.Outline, true)
		}
	case m.Keep != nil:
		if a := n.holding(m.Keep.Plan); a != nil {
			a.keep(*m.Keep)
		}
	case m.Recall != nil:
		return n.sendKept(r.stream, *m.Recall)
	case m.Plan != nil:
		n.startPlanning(r, *m.Plan)
	case m.Lengths != nil:
		r.startMeasuring(n, *m.Lengths)
	case m.Index != nil:
		n.startIndex(r, *m.Index)
	case m.Unindex != nil:
		if _, indexes, _ := n.indexable(m.Unindex.Plan); indexes != nil {
			indexes.Cancel(m.Unindex.ID)
		}
	case m.Abort != nil:
		if m.Abort.Final {
			n.giveUp(m.Abort.Reason, errReleased)
			return fmt.Errorf("%w: %s", errUnwanted, m.Abort.Reason)
		}
		n.cfg.Log.Error("the cache failed", "reason", m.Abort.Reason)
		r.start(nil)
		if a := n.current(); a == nil || a.spec.Plan == m.Abort.Plan {
			n.giveUp(m.Abort.Reason, cacheFailed(m.Abort.Reason))
			return nil
		}
		n.setJoined(false, m.Abort.Reason) // the rows are of another plan, which a head may use later
	default:
		n.datasets.obey(m)
	}
	return nil
}

// holding returns the assignment of a plan, or nil if the node has another one.
func (n *Node) holding(plan string) *assignment {
	if a := n.current(); a != nil && a.spec.Plan == plan {
		return a
	}
	return nil
}

// sendKept sends what the head recalls of a plan, in pieces.
func (n *Node) sendKept(stream peer.NodeStream, r peer.Recall) error {
	var k kept
	if a := n.holding(r.Plan); a != nil {
		k = a.recalled(r.Part)
	}
	for {
		piece := peer.Piece{Splits: k.splits[:min(len(k.splits), peer.PieceBytes)]}
		k.splits = k.splits[len(piece.Splits):]
		if len(piece.Splits) == 0 {
			piece.Loaded = k.loaded[:min(len(k.loaded), peer.PieceBytes)]
			k.loaded = k.loaded[len(piece.Loaded):]
		}
		piece.Last = len(k.splits)+len(k.loaded) == 0
		if err := stream.Send(peer.ToHead{Piece: &piece}); err != nil || piece.Last {
			return err
		}
	}
}

// reporter reports to the head, over one session, what has been loaded of an assignment.
type reporter struct {
	stream    peer.NodeStream
	of        *assignment // nil: nothing to report
	reported  int
	concluded bool             // Loaded or Failed was sent
	answers   chan peer.ToHead // to requests that goroutines of their own work on
	opened    *opened          // the version that Plan messages name; dropped when a plan is assigned

	vitals func() *peer.Vitals
	told   time.Time // when the vitals were last sent
}

// startIndex starts to make an index, unless the assignment that it is for was replaced: the head then asks again. It ends with the
// assignment, with the session, or when the head asks no more.
func (n *Node) startIndex(r *reporter, spec peer.Index) {
	of, indexes, stopped := n.indexable(spec.Plan)
	if indexes == nil {
		return
	}
	session := r.stream.Context()
	indexes.Make(session, of, spec, func(made peer.Indexed) {
		if made.Refusal != "" {
			n.cfg.Log.Warn("a filter is not indexed", "filter", spec.Filter, "reason", made.Refusal)
		}
		select {
		case r.answers <- peer.ToHead{Indexed: &made}:
		case <-session.Done():
		case <-stopped.Done():
		}
	})
}

// indexable returns the rows of a plan or of a dataset that was put, and their indexes; nil if the node has others.
func (n *Node) indexable(plan string) (of index.Rows, indexes *index.Set, stopped context.Context) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if d := n.datasets.find(plan); d != nil {
		return index.Rows{Layout: d.Layout, Rows: d.Rows}, d.indexes, d.stopped
	}
	a := n.assigned
	if a == nil || a.spec.Plan != plan {
		return of, nil, nil
	}
	if of.Rows = a.loaded(); of.Rows != nil {
		of.Layout = a.layout
	}
	return of, a.indexes, a.stopped
}

func (r *reporter) start(a *assignment) {
	r.of, r.reported, r.concluded, r.opened = a, 0, false, &opened{}
}

// mostReported bounds the number of splits in one message, which must be shorter than gRPC's limit of 4 MiB: a node that joins again
// reports all its splits at once.
const mostReported = 4096

// vitalsEvery is the time between two reports of memory and traffic: about every second heartbeat.
const vitalsEvery = peer.HeartbeatEvery * 3 / 2

// vitals returns what the head shows of this node.
func (n *Node) vitals() *peer.Vitals {
	s := n.status()
	v := &peer.Vitals{Memory: s.Memory, Puts: memoryOf(n.cfg.PutBudget), Writer: n.cfg.PutBudget.EachLimit(), Spill: s.Spill}
	v.Total, v.Readers = n.server.Traffic(protocol.MaxReaders)
	return v
}

// progress reports new splits, or sends an empty report as a heartbeat.
func (r *reporter) progress() error {
	for {
		var p peer.Progress
		left := 0
		if r.of != nil {
			p.Plan, p.Trouble = r.of.spec.Plan, r.of.trouble()
			p.Done, p.Bytes = r.of.progress.Report(r.reported)
			left = max(len(p.Done)-mostReported, 0)
			p.Done = p.Done[:len(p.Done)-left]
			r.reported += len(p.Done)
		}
		if now := time.Now(); now.Sub(r.told) >= vitalsEvery {
			p.Vitals, r.told = r.vitals(), now
		}
		if err := r.stream.Send(peer.ToHead{Progress: &p}); err != nil || left == 0 {
			return err
		}
	}
}

// conclude reports how loading has ended.
func (r *reporter) conclude(n *Node) error {
	r.concluded = true
	if err := r.progress(); err != nil {
		return err
	}
	plan := r.of.spec.Plan
	if err := r.of.failure(); err != nil {
		n.cfg.Log.Error("loading failed", "reason", err)
		return r.stream.Send(peer.ToHead{Failed: &peer.Failed{Plan: plan, Reason: err.Error()}})
	}
	rows := r.of.loaded()
	n.cfg.Log.Info("loaded", "rows", rows.Len(), "bytes", rows.Bytes(), "splits", r.of.spec.Splits)
	return r.stream.Send(peer.ToHead{Loaded: &peer.Loaded{
		Plan: plan, Rows: rows.Len(), Bytes: rows.Bytes(), ColumnBytes: rows.ColumnBytes(), Fits: rows.Fits(), Swept: r.of.sweep != nil,
	}})
}
