// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"

	"github.com/kubeflow/datacache/cacheserver/source"
)

// dataset is what a node has of one dataset: the part of its plan that the head assigned, or why there is none. The node's mu guards all
// but the first field, which does not change.
type dataset struct {
	source source.Source // the head says which version of it

	assigned *assignment // nil until the head assigns one, and again after it is given up
	failure  string      // why the last assignment was given up
}

// holds says whether the node loads, or has loaded, its part of the plan with this fingerprint.
func (d *dataset) holds(plan string) bool {
	return d.assigned != nil && d.assigned.spec.Plan == plan && d.assigned.failure() == nil
}

// giveUp takes the assignment out, for its owner to close; nil if there is none.
func (d *dataset) giveUp(reason string) *assignment {
	a := d.assigned
	d.assigned, d.failure = nil, reason
	return a
}

// fill adds how far loading is to a status, and its state as if the dataset were all that counts.
func (d *dataset) fill(s *Status) {
	a := d.assigned
	switch {
	case a == nil && d.failure != "":
		s.State, s.Reason = "Failed", d.failure
		return
	case a == nil:
		s.State = "Waiting"
		return
	}
	done, bytes := a.progress.report(0)
	s.Bytes, s.Splits.Done, s.Splits.Total = bytes, len(done), len(a.spec.Splits)
	for _, split := range done {
		s.Rows += split.Rows
	}
	switch {
	case a.failure() != nil:
		s.State, s.Reason = "Failed", a.failure().Error()
	case a.loaded() == nil:
		s.State, s.Reason = "Loading", fmt.Sprintf("loading (%d/%d splits)", s.Splits.Done, s.Splits.Total)
		if trouble := a.trouble(); trouble != "" {
			s.Reason += ": " + trouble
		}
	default:
		s.State, s.Reason = "Ready", "ready"
	}
}
