// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/retry"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/transport"
)

// heldBy is a plan that data nodes hold, and that may replace the cluster's.
type heldBy struct {
	plan string // fingerprint
	from origin
}

// wake puts a value into a channel that has room for one, unless there is one.
func wake(waiter chan<- struct{}) {
	select {
	case waiter <- struct{}{}:
	default:
	}
}

// wanted returns the plan to gather, if there is one: of those with the highest origin, that of the first node.
func (c *cluster) wanted() (best heldBy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.members {
		if s := c.members[i].session; s != nil && c.data.nodes[i].recalled > best.from {
			best = heldBy{s.held.Plan, c.data.nodes[i].recalled}
		}
	}
	return best
}

// holds reports whether a connected node holds a plan that is being gathered.
func (c *state) holds(node int, plan string) bool {
	s := c.members[node].session
	return s != nil && c.data.nodes[node].recalled != noPlan && s.held.Plan == plan
}

// holder returns the session of a node that holds a plan, otherwise nil. mayCome reports whether the node may still join with it.
func (c *cluster) holder(node int, of heldBy, now time.Time) (s *session, mayCome bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if node >= len(c.members) {
		return nil, false
	}
	if c.holds(node, of.plan) && c.data.nodes[node].recalled >= of.from {
		return c.members[node].session, true
	}
	return nil, c.members[node].session == nil && now.Sub(c.started) <= 3*c.silence
}

// keepHeld gathers the plans that data nodes hold, until ctx ends.
func (h *Head) keepHeld(ctx context.Context) error {
	for ctx.Err() == nil {
		if of := h.cluster.wanted(); of.from != noPlan {
			h.takeHeld(ctx, of)
			continue
		}
		select {
		case <-ctx.Done():
		case <-h.cluster.moved:
		}
	}
	return nil
}

// takeHeld continues with a plan that data nodes hold, if it can be gathered before ctx ends.
func (h *Head) takeHeld(ctx context.Context, of heldBy) {
	p, err := h.gather(ctx, of)
	if err == nil {
		h.cfg.Log.Info("took the plan from the data nodes", "snapshot", p.dataset.Snapshot, "splits", len(p.splits))
		h.cluster.restore(p, of, time.Now())
		return
	}
	if ctx.Err() == nil {
		h.cfg.Log.Warn("the plan that data nodes hold is of no use", "reason", err)
		h.cluster.forget(of, time.Now())
	}
}

// gather returns a plan that data nodes hold. It asks one node for the outline, and one for each part. If none has a part any more, it plans
// the pinned version again, which must give the same plan.
func (h *Head) gather(ctx context.Context, of heldBy) (*tablePlan, error) {
	o, err := h.gatherOutline(ctx, of)
	if err != nil {
		return nil, err
	}
	p, err := o.restore(h.cfg.Source)
	if err != nil {
		return nil, err
	}
	missing, err := h.gatherParts(ctx, of, p)
	if err == nil && len(missing) > 0 {
		h.cfg.Log.Warn("no data node has a part of the plan any more: planning its version again", "parts", len(missing), "first", missing[0])
		err = h.planAgain(ctx, p, missing)
	}
	if err != nil || len(p.runs) == h.cfg.Nodes {
		return p, err
	}
	return p.deal(h.cfg.Nodes)
}

// gatherOutline recalls the outline of a plan from any node that has it.
func (h *Head) gatherOutline(ctx context.Context, of heldBy) (*outline, error) {
	err := errors.New("no data node has it any more")
	for i := range h.cfg.Nodes {
		s, _ := h.cluster.holder(i, of, time.Now())
		if s == nil {
			continue
		}
		var o *outline
		var data []byte
		if data, _, err = h.recall(ctx, s, of.plan, peer.Outline); err == nil {
			o, err = decodeOutline(data, of.plan)
		}
		if err == nil && of.from == readyPlan && o.Loaded == nil {
			err = errors.New("the outline of a plan that was Ready has no digests")
		}
		if err == nil {
			return o, nil
		}
		err = fmt.Errorf("data node %d: %w", i, err)
	}
	return nil, err
}

// gatherParts recalls the parts of a plan, and returns those that no data node has any more. It waits for nodes that may have them.
func (h *Head) gatherParts(ctx context.Context, of heldBy, p *tablePlan) (missing []int, err error) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		missing, waits := h.tryParts(ctx, of, p)
		if !waits {
			return missing, ctx.Err()
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-h.cluster.moved:
		case <-ticker.C:
		}
		if h.cluster.wanted() != of { // all holders are gone, or there is a better plan
			return nil, errors.New("its last data node left, or another has a plan that clients have read")
		}
	}
}

// tryParts recalls the parts that are missing. waits says that one that is still missing may come with a node that has not joined.
func (h *Head) tryParts(ctx context.Context, of heldBy, p *tablePlan) (missing []int, waits bool) {
	for i := range p.parts {
		if p.parts[i] != nil {
			continue
		}
		for _, node := range assign.Keepers(i, len(p.parts)) {
			s, mayCome := h.cluster.holder(node, heldBy{plan: of.plan}, time.Now())
			if s == nil {
				waits = waits || mayCome
				continue
			}
			splits, loaded, err := h.recall(ctx, s, of.plan, i)
			if err == nil {
				err = p.setPart(i, splits, loaded)
			}
			if err == nil {
				break
			}
			h.cfg.Log.Warn("a data node does not have a part of the plan", "node", node, "part", i, "reason", err)
		}
		if p.parts[i] == nil {
			missing = append(missing, i)
		}
	}
	return missing, waits && len(missing) > 0
}

// recall requests a part of a plan, or its outline, from a node. It ends the session of a node that does not answer.
func (h *Head) recall(ctx context.Context, s *session, plan string, part int) (splits, loaded []byte, err error) {
	h.cluster.mu.Lock()
	s.tell(peer.ToNode{Recall: &peer.Recall{Plan: plan, Part: part}})
	h.cluster.mu.Unlock()
	timer := time.NewTimer(h.cfg.NodeTimeout)
	defer timer.Stop()
	for {
		select {
		case piece := <-s.pieces:
			splits, loaded = append(splits, piece.Splits...), append(loaded, piece.Loaded...)
			if len(splits)+len(loaded) > transport.MaxMessage {
				return nil, nil, h.end(s, status.Errorf(codes.ResourceExhausted, "a part of more than %d bytes", transport.MaxMessage))
			}
			if piece.Last && len(splits) == 0 {
				return nil, nil, errors.New("it has none")
			}
			if piece.Last {
				return splits, loaded, nil
			}
			timer.Reset(h.cfg.NodeTimeout)
		case <-s.closed:
			return nil, nil, errors.New("its session ended")
		case <-timer.C:
			return nil, nil, h.end(s, status.Errorf(codes.DeadlineExceeded, "it did not send its part of the plan within %s", h.cfg.NodeTimeout))
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// end ends a session and returns the reason.
func (h *Head) end(s *session, reason error) error {
	h.cluster.mu.Lock()
	defer h.cluster.mu.Unlock()
	s.close(reason)
	return reason
}

// pass gives a piece to the gatherer.
func (s *session) pass(ctx context.Context, piece peer.Piece) error {
	select {
	case s.pieces <- piece:
		return nil
	case <-s.closed:
		return s.reason
	case <-ctx.Done():
		return connectionLost(ctx.Err())
	}
}

// planAgain plans the version of p again, and sets the missing parts of p.
func (h *Head) planAgain(ctx context.Context, p *tablePlan, missing []int) error {
	var again *tablePlan
	err := retry.Do(ctx, h.mayPass, h.cluster.planningTrouble, func() (err error) {
		again, err = h.makePlan(ctx, p.outline.Pin, len(p.parts))
		return err
	})
	if err != nil {
		return fmt.Errorf("plan its version again: %w", err)
	}
	if again.fingerprint != p.fingerprint {
		return errors.New("its version was planned again and has other splits now: the table's files have changed")
	}
	for _, i := range missing {
		if err := p.setPart(i, again.parts[i], nil); err != nil {
			return err
		}
	}
	return nil
}

// deal returns the plan with its splits assigned anew, to another number of data nodes.
func (p *tablePlan) deal(nodes int) (*tablePlan, error) {
	planned := p.Plan
	for i := range p.parts {
		splits, err := source.DecodeSplits(p.parts[i])
		if err != nil {
			return nil, err
		}
		planned.Splits = append(planned.Splits, splits...)
	}
	dealt, err := newPlan(&planned, nodes)
	if err != nil {
		return nil, err
	}
	copy(dealt.splits, p.splits)
	if p.outline.Loaded != nil {
		dealt.outline.Loaded, err = dealt.sums()
	}
	return dealt, err
}
