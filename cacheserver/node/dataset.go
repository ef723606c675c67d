// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
)

// dataset is a node's state of one dataset: the assigned part of its plan, or why there is none. The node's mu protects it.
type dataset struct {
	assigned *assignment // nil until the head assigns one, and after it was dropped
	failure  string      // why the last assignment was dropped
}

// holds reports whether the node is loading or has loaded its part of the plan with this fingerprint.
func (d *dataset) holds(plan string) bool {
	return d.assigned != nil && d.assigned.spec.Plan == plan && d.assigned.failure() == nil
}

// giveUp removes the assignment and returns it to be closed; nil if there is none.
func (d *dataset) giveUp(reason string) *assignment {
	a := d.assigned
	d.assigned, d.failure = nil, reason
	return a
}

// fill adds to a status the progress of loading, and the state as far as it depends on the dataset.
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
	s.Splits.Total = len(a.spec.Splits)
	s.Splits.Done, s.Rows, s.Bytes = a.progress.Loaded()
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
