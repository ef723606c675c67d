// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/source"
)

// opened is the version of a dataset that a head is planning. It is safe for concurrent use.
type opened struct {
	mu      sync.Mutex
	version source.Version
	dataset source.Dataset // nil: none
}

// get returns a version, which it opens unless it was the last one.
func (o *opened) get(ctx context.Context, from source.Source, v source.Version) (source.Dataset, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dataset != nil && bytes.Equal(o.version.Pin, v.Pin) && bytes.Equal(o.version.Selection, v.Selection) {
		return o.dataset, nil
	}
	dataset, err := from.Open(ctx, v, &source.Buffers{})
	if err == nil {
		o.version, o.dataset = v, dataset
	}
	return dataset, err
}

// startPlanning plans data files for the head. It ends with the session.
func (n *Node) startPlanning(r *reporter, spec peer.Plan) {
	session, of := r.stream.Context(), r.opened
	go func() {
		answer := peer.Planned{ID: spec.ID}
		splits, err := n.planFiles(session, of, spec)
		if err != nil {
			n.cfg.Log.Warn("files are left to the head to plan", "reason", err)
			answer.Reason = err.Error()
		} else {
			answer.Splits = source.EncodeSplits(splits)
		}
		select {
		case r.answers <- peer.ToHead{Planned: &answer}:
		case <-session.Done():
		}
	}()
}

func (n *Node) planFiles(ctx context.Context, of *opened, spec peer.Plan) ([]source.Split, error) {
	files, err := source.DecodeSplits(spec.Files)
	if err != nil {
		return nil, err
	}
	dataset, err := of.get(ctx, n.cfg.Source, source.Version{Pin: spec.Pin, Selection: spec.Selection})
	if err != nil {
		return nil, err
	}
	planner, ok := dataset.(source.FilePlanner)
	if !ok {
		return nil, fmt.Errorf("files of %T can't be planned one by one", dataset)
	}
	return planner.PlanFiles(ctx, files)
}
