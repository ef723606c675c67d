// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"cmp"
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/epoch"
	where "github.com/kubeflow/datacache/cacheserver/filter"
	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/transport"
	"github.com/kubeflow/datacache/cacheserver/work"
)

// checkBytes is the memory that checking a filter takes for each byte of its text.
const checkBytes = 320

// check checks a request's filter, in turns of the requests' jobs. The result's text is empty if the request has no filter.
func (s *service) check(ctx context.Context, v *view, r protocol.Request) (by asked, err error) {
	if r.Filter == "" {
		return asked{}, nil
	}
	client := transport.Client(ctx)
	job, clients, size := cmp.Or(r.Job, client), s.cfg.Budget.Clients(), int64(checkBytes*len(r.Filter))
	err = s.checks.Run(ctx, work.Task{
		Owner: job, Steps: 1, Cost: float64(size),
		Begin: func(bool) (func(int) error, error) {
			if err := clients.Reserve(size); err != nil {
				return nil, status.Errorf(codes.ResourceExhausted, "filter: %v: ask again later", err)
			}
			return func(int) (err error) {
				defer clients.Release(size)
				by, err = s.parse(v, r.Filter)
				return err
			}, nil
		},
	})
	by.job, by.client = job, client
	return by, err
}

// parse returns the canonical form and the cost of a filter, if it is valid and not too expensive.
func (s *service) parse(v *view, text string) (asked, error) {
	m, err := where.Match(v.plan.Schema, text)
	if err != nil {
		return asked{}, status.Errorf(codes.InvalidArgument, "command: %v", err)
	}
	var rows int64
	for i := range v.nodes {
		rows = max(rows, v.nodes[i].rows)
	}
	terms, _ := m.Cost()
	if int64(terms) > s.cfg.FilterComparisons/max(rows, 1) {
		return asked{}, status.Errorf(codes.InvalidArgument,
			"command: filter: %d comparisons for each of the %d rows of a data node, %.3g in all, are more than the %.3g of --filter-comparisons: use fewer comparisons (IN with any number of values is one), or raise it",
			terms, rows, float64(terms)*float64(rows), float64(s.cfg.FilterComparisons))
	}
	canonical, err := syntax.Canonical(text)
	if err != nil {
		return asked{}, status.Errorf(codes.InvalidArgument, "command: filter: %v", err)
	}
	return asked{text: canonical, comparisons: int64(terms) * rows}, nil
}

// choose returns v with the rows that a request selects. With a filter that no request used before, it waits for the nodes.
func (s *service) choose(ctx context.Context, v *view, r protocol.Request) (*view, error) {
	if r.Filter == "" && r.Split == nil {
		return v, nil
	}
	by, err := s.check(ctx, v, r)
	if err != nil {
		return nil, err
	}
	chosen := &selection{Selection: protocol.Selection{Filter: by.text, Split: r.Split}}
	if by.text != "" {
		if v, chosen.filter, err = s.cluster.filtered(ctx, v, by); err != nil {
			return nil, err
		}
	}
	narrowed := *v
	if r.Split != nil {
		first, end := r.Split.Bounds(uint64(v.filtered))
		narrowed.rows = int64(end - first)
	}
	narrowed.selection = chosen
	chosen.fingerprint, err = fingerprintOf(struct {
		Dataset string
		Filter  string
		Split   *epoch.Split
	}{v.plan.dataset.Fingerprint, by.text, r.Split})
	return &narrowed, err
}
