// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package view has what pages, commands and the manager say alike of a DataCache: its status in a few words, and the readers that a head's
// /status lists.
package view

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// Summary is what the status of a DataCache says.
type Summary struct {
	State           v1alpha1.State
	Reason, Message string
	Needs           bool   // somebody must do something: time alone does not help
	NotRead         string // reason why TrainJobs don't read a cache that is Ready, "" if they do or that is not known
	Why             string // what NotRead means, as a sentence
}

// Of returns the summary of a DataCache.
func Of(dc *v1alpha1.DataCache) Summary {
	ready := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil {
		return Summary{State: v1alpha1.StatePending, Message: Unseen}
	}
	s := Summary{State: dc.Status.State, Reason: ready.Reason, Message: ready.Message}
	switch s.State {
	case v1alpha1.StateFailed, v1alpha1.StateDegraded:
		s.Needs = true
	case v1alpha1.StateReady, v1alpha1.StateReleased:
	default:
		s.Needs = IsObstacle(ready.Reason)
	}
	read := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionRead)
	if read != nil && read.Status == metav1.ConditionFalse && s.State == v1alpha1.StateReady {
		s.NotRead, s.Why, s.Needs = read.Reason, read.Message, read.Reason != v1alpha1.ReasonNotRead
	}
	return s
}

// Unseen is what is said of a DataCache without a status.
const Unseen = "no manager has looked at it yet"

// passing are the reasons of the condition Ready that name no problem that people may have to fix.
var passing = []string{"", "PodsStarting", "HeadUnreachable", "Planning", "Loading", "Loaded", "Reloading", "LoadFailed", "Released"}

// IsObstacle reports whether a reason of the condition Ready names a problem that people may have to fix.
func IsObstacle(reason string) bool { return !slices.Contains(passing, reason) }
