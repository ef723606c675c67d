// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/source"
)

// joinedEvery is how often a head that plans looks for data nodes that have joined.
const joinedEvery = 100 * time.Millisecond

// others has the data nodes that join take part in a plan: source.Planning.Others.
func (h *Head) others(ctx context.Context, v source.Version, work func(source.FilePlanner)) {
	var wait sync.WaitGroup
	defer wait.Wait()
	asked := map[*session]bool{}
	ticker := time.NewTicker(joinedEvery)
	defer ticker.Stop()
	for {
		for _, s := range h.idle() {
			if !asked[s] {
				asked[s] = true
				wait.Go(func() { work(&nodePlanner{h.cluster, s, v}) })
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// idle returns the sessions of nodes that hold no plan.
func (h *Head) idle() (all []*session) {
	h.cluster.mu.Lock()
	defer h.cluster.mu.Unlock()
	for i := range h.cluster.members {
		if s := h.cluster.members[i].session; s != nil && s.held == nil {
			all = append(all, s)
		}
	}
	return all
}

// nodePlanner is a data node that plans files of a version.
type nodePlanner struct {
	cluster *cluster
	session *session
	version source.Version
}

// PlanFiles implements source.FilePlanner.
func (n *nodePlanner) PlanFiles(ctx context.Context, files []source.Split) ([]source.Split, error) {
	s := n.session
	n.cluster.mu.Lock()
	s.plans++
	id := s.plans
	s.tell(peer.ToNode{Plan: &peer.Plan{ID: id, Pin: n.version.Pin, Selection: n.version.Selection, Files: source.EncodeSplits(files)}})
	n.cluster.mu.Unlock()
	for {
		select {
		case answer := <-s.planned:
			switch {
			case answer.ID != id: // the answer to an earlier message, for which nobody waits any more
			case answer.Reason != "":
				return nil, errors.New(answer.Reason)
			default:
				return source.DecodeSplits(answer.Splits)
			}
		case <-s.closed:
			return nil, s.reason
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
