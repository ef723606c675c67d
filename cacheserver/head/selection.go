// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
	"github.com/kubeflow/datacache/cacheserver/protocol"
)

// selection says which rows of a view a request selects.
type selection struct {
	protocol.Selection
	filter      string // names the filter's index on the data nodes; empty if the request has no filter
	fingerprint string
}

// canonical checks a filter and returns its canonical form; "" stays "".
func (h *Head) canonical(plan *tablePlan, filter string) (string, error) {
	if filter == "" {
		return "", nil
	}
	if _, err := h.cfg.Source.Match(plan.Schema, filter); err != nil {
		return "", status.Errorf(codes.InvalidArgument, "command: %v", err)
	}
	text, err := syntax.Canonical(filter)
	if err != nil {
		return "", status.Errorf(codes.InvalidArgument, "command: filter: %v", err)
	}
	return text, nil
}

// choose returns v with the rows that a request selects. With a filter that no request used before, it waits for the nodes.
func (h *Head) choose(ctx context.Context, v view, r protocol.Request) (view, error) {
	if r.Filter == "" && r.Split == nil {
		return v, nil
	}
	text, err := h.canonical(v.plan, r.Filter)
	if err != nil {
		return view{}, err
	}
	s := &selection{Selection: protocol.Selection{Filter: text, Split: r.Split}}
	if text != "" {
		if v, s.filter, err = h.cluster.filtered(ctx, v, text); err != nil {
			return view{}, err
		}
	}
	if r.Split != nil {
		first, end := r.Split.Bounds(uint64(v.filtered))
		v.rows = int64(end - first)
	}
	v.selection = s
	s.fingerprint, err = fingerprintOf(struct {
		Dataset string
		Filter  string
		Split   *epoch.Split
	}{v.plan.dataset.Fingerprint, text, r.Split})
	return v, err
}
