// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/controller/queue"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// phase is the part of a TrainJob's state that matters to its cache.
type phase string

const (
	active    phase = "active"
	suspended phase = "suspended"
	queued    phase = "in its queue" // suspended by Kueue, and waits for the quota before its cache runs
	finished  phase = "finished"
	gone      phase = "deleted"
)

// phaseOf returns gone for a job that does not exist (nil) or is being deleted. A finished job stays finished, suspended or not.
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

// phaseIn returns the phase of a job whose queue may wait for its cache: if the job has the quota, its cache runs as if the job did.
func phaseIn(ctx context.Context, q *queue.Queues, job *trainer.TrainJob) (phase, error) {
	is := phaseOf(job)
	if is != suspended {
		return is, nil
	}
	switch place, err := q.PlaceOf(ctx, job); {
	case err != nil:
		return is, fmt.Errorf("find the place of TrainJob %s in its queue: %w", kube.Qualified(job), err)
	case place == queue.Reserved:
		return active, nil
	case place == queue.Waiting:
		return queued, nil
	}
	return is, nil
}

// conditionSince is the time since which a condition of the job has been True; zero if it is not.
func conditionSince(job *trainer.TrainJob, kind string) time.Time {
	if job == nil {
		return time.Time{}
	}
	c := meta.FindStatusCondition(job.Status.Conditions, kind)
	if c == nil || c.Status != metav1.ConditionTrue {
		return time.Time{}
	}
	return c.LastTransitionTime.Time
}

// multiKueue is the manager of jobs that run in another cluster, which is also responsible for their caches.
const multiKueue = "kueue.x-k8s.io/multikueue"

func isElsewhere(job *trainer.TrainJob) bool { return ptr.Deref(job.Spec.ManagedBy, "") == multiKueue }

// owner is the state of the TrainJob that a DataCache was made for.
type owner struct {
	phase     phase
	suspended time.Time // when it was suspended; zero: it is not, or its condition does not say so yet
	failed    time.Time // time of failure; zero: it did not fail
}

func ownerState(job *trainer.TrainJob, is phase) owner {
	return owner{is, conditionSince(job, trainer.TrainJobSuspended), conditionSince(job, trainer.TrainJobFailed)}
}

// plan is what should happen to a cache.
type plan struct {
	run     bool          // its pods should exist
	hold    bool          // with run: nothing is created or deleted, since the cache failed and its retry is not due
	restart bool          // with run: recreate the pods, since the cache failed and its retry is due
	remove  bool          // delete the DataCache itself
	why     string        // for people
	after   time.Duration // reconcile again after this time, since time alone may change the plan; 0: never
}

const (
	// defaultSuspendGrace is the default of retention.suspendGrace.
	defaultSuspendGrace = 10 * time.Minute
	// firstRetry is the delay before a failed cache is retried; it doubles with each consecutive failure, up to lastRetry.
	firstRetry = 10 * time.Second
	lastRetry  = 10 * time.Minute
)

// planFor decides whether a cache runs. The cache of a job runs as long as the job, and for its suspendGrace when the job is
// suspended; any other runs while it is used and then for its idleTTL, or forever without one. A failed cache that nobody uses is
// released, since it only uses memory.
func planFor(dc *v1alpha1.DataCache, by owner, users int, now time.Time) plan {
	ref := kube.JobOf(dc)
	switch {
	case dc.Spec.Suspend:
		return plan{why: "spec.suspend is true"}
	case ref != nil && by.phase == queued && !holdsRows(dc):
		return plan{why: fmt.Sprintf("TrainJob %s is %s", ref.Name, queued)}
	case ref != nil && (by.phase == suspended || by.phase == queued):
		return planSuspended(dc, ref.Name, by.suspended, now)
	case ref != nil:
		return plan{run: by.phase == active, why: fmt.Sprintf("TrainJob %s is %s", ref.Name, by.phase)}
	case users > 0 && dc.Status.State == v1alpha1.StateFailed:
		return planRetry(dc, now)
	case users > 0:
		return plan{run: true}
	}
	return planIdle(dc, now)
}

// holdsRows reports whether a cache has begun to load. One that has not would take quota from others while its TrainJob has none.
func holdsRows(dc *v1alpha1.DataCache) bool {
	switch dc.Status.State {
	case v1alpha1.StatePlanning, v1alpha1.StateLoading, v1alpha1.StateReady, v1alpha1.StateDegraded:
		return true
	}
	return false
}

// planSuspended keeps a cache for the suspendGrace. One that has not loaded by then is released as well.
func planSuspended(dc *v1alpha1.DataCache, job string, since, now time.Time) plan {
	if since.IsZero() {
		since = now
	}
	grace := durationOr(dc.Spec.Retention.SuspendGrace, defaultSuspendGrace)
	if left := since.Add(grace).Sub(now); left > 0 {
		return plan{run: true, why: fmt.Sprintf("TrainJob %s is suspended", job), after: left}
	}
	return plan{why: fmt.Sprintf("TrainJob %s is suspended", job)}
}

// planRetry retries a failed cache that is in use: when its retry annotation changes, or when its delay is over.
func planRetry(dc *v1alpha1.DataCache, now time.Time) plan {
	last := dc.Status.LastFailure
	if last == nil || dc.Annotations[kube.AnnotationRetry] != last.Retry {
		return plan{run: true, restart: true}
	}
	if left := last.Time.Add(retryPause(last.Count)).Sub(now); left > 0 {
		return plan{run: true, hold: true, after: left}
	}
	return plan{run: true, restart: true}
}

// retryPause doubles with every consecutive failure.
func retryPause(failures int32) time.Duration {
	pause := firstRetry
	for i := int32(1); i < failures && pause < lastRetry; i++ {
		pause *= 2
	}
	return min(pause, lastRetry)
}

// planIdle is the plan for a cache that nobody uses.
func planIdle(dc *v1alpha1.DataCache, now time.Time) plan {
	since := lastUse(dc, now)
	p := planUnused(dc, since, now)
	if limit := dc.Spec.Retention.DeleteAfterIdle; limit != nil {
		left := since.Add(limit.Duration).Sub(now)
		if left <= 0 {
			return plan{remove: true, why: fmt.Sprintf("nobody used it for its deleteAfterIdle, %s", limit.Duration)}
		}
		if p.after == 0 || left < p.after {
			p.after = left
		}
	}
	return p
}

func planUnused(dc *v1alpha1.DataCache, since, now time.Time) plan {
	ttl := dc.Spec.Retention.IdleTTL
	switch {
	case dc.Status.State == v1alpha1.StateFailed:
		return plan{why: "it failed, and nobody uses it"}
	case isLeftOver(dc):
		return plan{why: "the TrainJob that it was made for is deleted"}
	case ttl == nil:
		return plan{run: true}
	}
	if left := since.Add(ttl.Duration).Sub(now); left > 0 {
		return plan{run: true, after: left}
	}
	return plan{why: fmt.Sprintf("nobody used it for its idleTTL, %s", ttl.Duration)}
}

// isLeftOver reports whether the DataCache was made for a single TrainJob that was deleted with --cascade=orphan.
func isLeftOver(dc *v1alpha1.DataCache) bool {
	return dc.Labels[wellknown.LabelManagedBy] == wellknown.ManagedBy && dc.Labels[kube.LabelScope] == "" && kube.JobOf(dc) == nil
}

// lastUse is when the cache was last used, or its creation if it never was.
func lastUse(dc *v1alpha1.DataCache, now time.Time) time.Time {
	switch {
	case dc.Status.Users > 0:
		return now // its last user ended just now, which is not recorded yet
	case dc.Status.LastUsedTime != nil:
		return dc.Status.LastUsedTime.Time
	}
	return dc.CreationTimestamp.Time
}

func durationOr(d *metav1.Duration, fallback time.Duration) time.Duration {
	if d == nil {
		return fallback
	}
	return d.Duration
}
