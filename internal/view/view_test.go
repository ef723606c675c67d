// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// TestOf checks which caches need somebody, and what is said of one that is Ready and not read.
func TestOf(t *testing.T) {
	t.Parallel()
	condition := func(kind, reason string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: "why"}
	}
	for name, c := range map[string]struct {
		state      v1alpha1.State
		conditions []metav1.Condition
		want       Summary
	}{
		"not seen":      {"", nil, Summary{v1alpha1.StatePending, "", "no manager has looked at it yet", false, "", ""}},
		"starts":        {v1alpha1.StatePending, []metav1.Condition{condition("Ready", "PodsStarting")}, Summary{v1alpha1.StatePending, "PodsStarting", "why", false, "", ""}},
		"has no room":   {v1alpha1.StatePending, []metav1.Condition{condition("Ready", "Unschedulable")}, Summary{v1alpha1.StatePending, "Unschedulable", "why", true, "", ""}},
		"failed":        {v1alpha1.StateFailed, []metav1.Condition{condition("Ready", "LoadFailed")}, Summary{v1alpha1.StateFailed, "LoadFailed", "why", true, "", ""}},
		"lacks rows":    {v1alpha1.StateDegraded, []metav1.Condition{condition("Ready", "Reloading")}, Summary{v1alpha1.StateDegraded, "Reloading", "why", true, "", ""}},
		"released":      {v1alpha1.StateReleased, []metav1.Condition{condition("Ready", "Released")}, Summary{v1alpha1.StateReleased, "Released", "why", false, "", ""}},
		"is not needed": {v1alpha1.StateReady, []metav1.Condition{condition("Ready", "Loaded"), condition("Read", "NotRead")}, Summary{v1alpha1.StateReady, "Loaded", "why", false, "NotRead", "why"}},
		"is waited for": {v1alpha1.StateReady, []metav1.Condition{condition("Ready", "Loaded"), condition("Read", "RanksWait")}, Summary{v1alpha1.StateReady, "Loaded", "why", true, "RanksWait", "why"}},
		"has a job that waits": {v1alpha1.StateReady, []metav1.Condition{condition("Ready", "Loaded"), condition("Read", "TrainJobWaits")},
			Summary{v1alpha1.StateReady, "Loaded", "why", true, "TrainJobWaits", "why"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Of(&v1alpha1.DataCache{Status: v1alpha1.DataCacheStatus{State: c.state, Conditions: c.conditions}}); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

func TestPercent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		done, total int64
		want        int32
	}{{0, 0, 100}, {0, 3, 0}, {1, 3, 33}, {999, 1000, 99}, {3, 3, 100}} {
		h := &HeadStatus{}
		h.Splits.Done, h.Splits.Total = c.done, c.total
		if got := h.Percent(); got != c.want {
			t.Errorf("%d of %d splits = %d%%, want %d%%", c.done, c.total, got, c.want)
		}
	}
}
