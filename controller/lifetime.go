// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// phase is what of a TrainJob's life matters to its cache.
type phase string

const (
	active    phase = "active"
	suspended phase = "suspended"
	finished  phase = "finished"
	gone      phase = "deleted"
)

// phaseOf is gone for a job that does not exist (nil) or is being deleted. A finished job stays finished, suspended or not.
func phaseOf(job *trainer.TrainJob) phase {
	switch {
	case job == nil || job.DeletionTimestamp != nil:
		return gone
	case meta.IsStatusConditionTrue(job.Status.Conditions, trainer.TrainJobComplete), meta.IsStatusConditionTrue(job.Status.Conditions, trainer.TrainJobFailed):
		return finished
	case ptr.Deref(job.Spec.Suspend, false):
		return suspended
	}
	return active
}

// failedAt is when the job failed; zero if it did not.
func failedAt(job *trainer.TrainJob) time.Time {
	if job == nil {
		return time.Time{}
	}
	c := meta.FindStatusCondition(job.Status.Conditions, trainer.TrainJobFailed)
	if c == nil || c.Status != metav1.ConditionTrue {
		return time.Time{}
	}
	return c.LastTransitionTime.Time
}

// multiKueue manages jobs that run in another cluster; their caches are that cluster's matter.
const multiKueue = "kueue.x-k8s.io/multikueue"

func isElsewhere(job *trainer.TrainJob) bool { return ptr.Deref(job.Spec.ManagedBy, "") == multiKueue }

// ownerOf is the TrainJob that the DataCache was made for alone; nil for one that outlives its users. Not the controller's reference:
// Kueue leaves out of its quota what a job that it manages controls.
func ownerOf(dc metav1.Object) *metav1.OwnerReference {
	owners := dc.GetOwnerReferences()
	i := slices.IndexFunc(owners, func(o metav1.OwnerReference) bool {
		return o.APIVersion == trainer.GroupVersion.String() && o.Kind == trainer.TrainJobKind
	})
	if i < 0 {
		return nil
	}
	return &owners[i]
}

// plan says whether a cache is to have pods.
type plan struct {
	run   bool
	why   string        // not: for people
	after time.Duration // look again then, because time alone may change it; 0: no
}

// live decides whether a cache runs. One that a job owns runs as long as the job; any other while it is used, then for its idleTTL, or
// for ever without one. What failed and is used by nobody only holds memory: it goes, and the next user tries anew.
func live(dc *v1alpha1.DataCache, owner phase, users int, now time.Time) plan {
	if dc.Spec.Suspend {
		return plan{why: "spec.suspend is true"}
	}
	if ref := ownerOf(dc); ref != nil {
		return plan{run: owner == active, why: fmt.Sprintf("TrainJob %s is %s", ref.Name, owner)}
	}
	switch {
	case users > 0:
		return plan{run: true}
	case dc.Status.State == v1alpha1.StateFailed:
		return plan{why: "it failed, and nobody uses it"}
	case dc.Spec.Retention.IdleTTL == nil:
		return plan{run: true}
	}
	ttl := dc.Spec.Retention.IdleTTL.Duration
	since := dc.CreationTimestamp.Time
	if last := dc.Status.LastUsedTime; last != nil {
		since = last.Time
	}
	if dc.Status.Users > 0 {
		since = now // its last user went just now, which is not recorded yet
	}
	if left := since.Add(ttl).Sub(now); left > 0 {
		return plan{run: true, after: left}
	}
	return plan{why: fmt.Sprintf("nobody used it for its idleTTL, %s", ttl)}
}
