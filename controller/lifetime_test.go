// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/cachetest"
)

func trainJob(changes ...func(*trainer.TrainJob)) *trainer.TrainJob {
	job := &trainer.TrainJob{ObjectMeta: metav1.ObjectMeta{Name: "train", Namespace: "team-a", UID: "job-uid"}}
	for _, change := range changes {
		change(job)
	}
	return job
}

func withCondition(kind string, status metav1.ConditionStatus) func(*trainer.TrainJob) {
	return func(job *trainer.TrainJob) {
		job.Status.Conditions = append(job.Status.Conditions, metav1.Condition{Type: kind, Status: status})
	}
}

func suspend(job *trainer.TrainJob) { job.Spec.Suspend = new(true) }

func TestPhaseOf(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		job  *trainer.TrainJob
		want phase
	}{
		"none":               {nil, gone},
		"new":                {trainJob(), active},
		"being deleted":      {trainJob(func(j *trainer.TrainJob) { j.DeletionTimestamp = &cachetest.Noon }), gone},
		"suspended":          {trainJob(suspend), suspended},
		"let go":             {trainJob(withCondition(trainer.TrainJobSuspended, metav1.ConditionFalse)), active},
		"complete":           {trainJob(withCondition(trainer.TrainJobComplete, metav1.ConditionTrue)), finished},
		"failed":             {trainJob(withCondition(trainer.TrainJobFailed, metav1.ConditionTrue)), finished},
		"failed before":      {trainJob(withCondition(trainer.TrainJobFailed, metav1.ConditionFalse)), active},
		"finished suspended": {trainJob(suspend, withCondition(trainer.TrainJobComplete, metav1.ConditionTrue)), finished},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := phaseOf(c.job); got != c.want {
				t.Errorf("phase = %s, want %s", got, c.want)
			}
		})
	}
}

func TestPlanFor(t *testing.T) {
	t.Parallel()
	own := func(dc *v1alpha1.DataCache) {
		dc.OwnerReferences = []metav1.OwnerReference{jobReference(trainJob(), false)}
	}
	foreignOwner := func(dc *v1alpha1.DataCache) {
		dc.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "y"}}
	}
	idle := func(d time.Duration) func(*v1alpha1.DataCache) {
		return func(dc *v1alpha1.DataCache) { dc.Spec.Retention.IdleTTL = &metav1.Duration{Duration: d} }
	}
	lastUsed := func(at metav1.Time) func(*v1alpha1.DataCache) {
		return func(dc *v1alpha1.DataCache) { dc.Status.LastUsedTime = &at }
	}
	recordedUsers := func(dc *v1alpha1.DataCache) { dc.Status.Users = 1 }
	failed := func(dc *v1alpha1.DataCache) { dc.Status.State = v1alpha1.StateFailed }
	ours := func(dc *v1alpha1.DataCache) {
		dc.Labels = map[string]string{wellknown.LabelManagedBy: wellknown.ManagedBy}
	}
	shared := func(dc *v1alpha1.DataCache) { dc.Labels[kube.LabelScope] = kube.ScopeNamespace }
	deleteAfter := func(d time.Duration) func(*v1alpha1.DataCache) {
		return func(dc *v1alpha1.DataCache) { dc.Spec.Retention.DeleteAfterIdle = &metav1.Duration{Duration: d} }
	}
	grace := func(d time.Duration) func(*v1alpha1.DataCache) {
		return func(dc *v1alpha1.DataCache) { dc.Spec.Retention.SuspendGrace = &metav1.Duration{Duration: d} }
	}
	failures := func(count int32, ago time.Duration) func(*v1alpha1.DataCache) {
		return func(dc *v1alpha1.DataCache) {
			dc.Status.LastFailure = &v1alpha1.Failure{Time: after(-ago), Count: count}
		}
	}
	since := map[*v1alpha1.DataCache]time.Time{}
	var mu sync.Mutex
	suspendedSince := func(ago time.Duration) func(*v1alpha1.DataCache) {
		return func(dc *v1alpha1.DataCache) { mu.Lock(); defer mu.Unlock(); since[dc] = cachetest.Noon.Add(-ago) }
	}
	type changes = []func(*v1alpha1.DataCache)
	for name, c := range map[string]struct {
		dc    changes
		owner phase
		users int
		want  plan
	}{
		"owner runs":                    {changes{own}, active, 1, plan{run: true, why: "TrainJob train is active"}},
		"owner was just suspended":      {changes{own}, suspended, 0, plan{run: true, why: "TrainJob train is suspended", after: 10 * time.Minute}},
		"owner was suspended a while":   {changes{own, grace(time.Hour), suspendedSince(20 * time.Minute)}, suspended, 0, plan{run: true, why: "TrainJob train is suspended", after: 40 * time.Minute}},
		"owner stays suspended":         {changes{own, suspendedSince(10 * time.Minute)}, suspended, 0, plan{why: "TrainJob train is suspended"}},
		"owner waits in its queue":      {changes{own}, queued, 0, plan{why: "TrainJob train is in its queue"}},
		"owner waits, its cache loads":  {changes{own, func(dc *v1alpha1.DataCache) { dc.Status.State = v1alpha1.StateLoading }}, queued, 0, plan{run: true, why: "TrainJob train is suspended", after: 10 * time.Minute}},
		"no grace":                      {changes{own, grace(0)}, suspended, 0, plan{why: "TrainJob train is suspended"}},
		"owner finished":                {changes{own}, finished, 0, plan{why: "TrainJob train is finished"}},
		"owner finished, others use it": {changes{own}, finished, 3, plan{why: "TrainJob train is finished"}},
		"owner is gone":                 {changes{own}, gone, 0, plan{why: "TrainJob train is deleted"}},
		"owner resumed after a failure": {changes{own, failed}, active, 1, plan{run: true, why: "TrainJob train is active"}},
		"another's owner means nothing": {changes{foreignOwner}, gone, 0, plan{run: true}},
		"suspended, whoever uses it":    {changes{own, func(dc *v1alpha1.DataCache) { dc.Spec.Suspend = true }}, active, 1, plan{why: "spec.suspend is true"}},
		"used":                          {changes{idle(time.Hour)}, gone, 1, plan{run: true}},
		"used, failed just now":         {changes{failed, failures(1, 0)}, gone, 1, plan{run: true, hold: true, after: 10 * time.Second}},
		"used, failed thrice":           {changes{failed, failures(3, 30*time.Second)}, gone, 1, plan{run: true, hold: true, after: 10 * time.Second}},
		"used, its pause is over":       {changes{failed, failures(3, 40*time.Second)}, gone, 1, plan{run: true, restart: true}},
		"used, failed for ever":         {changes{failed, failures(1000, 0)}, gone, 1, plan{run: true, hold: true, after: 10 * time.Minute}},
		"used, told to try":             {changes{failed, failures(3, 0), func(dc *v1alpha1.DataCache) { dc.Annotations = map[string]string{kube.AnnotationRetry: "1"} }}, gone, 1, plan{run: true, restart: true}},
		"failed, unused":                {changes{failed}, gone, 0, plan{why: "it failed, and nobody uses it"}},
		"left over from its job":        {changes{ours}, gone, 0, plan{why: "the TrainJob that it was made for is deleted"}},
		"left over and used":            {changes{ours}, gone, 1, plan{run: true}},
		"shared, unused":                {changes{ours, shared}, gone, 0, plan{run: true}},
		"deleted soon":                  {changes{idle(time.Hour), deleteAfter(25 * time.Hour)}, gone, 0, plan{why: "nobody used it for its idleTTL, 1h0m0s", after: time.Hour}},
		"deleted before it is freed":    {changes{idle(30 * time.Hour), deleteAfter(25 * time.Hour)}, gone, 0, plan{run: true, after: time.Hour}},
		"deleted":                       {changes{idle(time.Hour), deleteAfter(24 * time.Hour)}, gone, 0, plan{remove: true, why: "nobody used it for its deleteAfterIdle, 24h0m0s"}},
		"used: not deleted":             {changes{idle(time.Hour), deleteAfter(0)}, gone, 1, plan{run: true}},
		"deleted although it failed":    {changes{failed, deleteAfter(time.Hour)}, gone, 0, plan{remove: true, why: "nobody used it for its deleteAfterIdle, 1h0m0s"}},
		"unused for ever":               {nil, gone, 0, plan{run: true}},
		"never used yet":                {changes{idle(25 * time.Hour)}, gone, 0, plan{run: true, after: time.Hour}},
		"never used":                    {changes{idle(24 * time.Hour)}, gone, 0, plan{why: "nobody used it for its idleTTL, 24h0m0s"}},
		"used a while ago":              {changes{idle(time.Hour), lastUsed(after(-time.Minute))}, gone, 0, plan{run: true, after: 59 * time.Minute}},
		"used long ago":                 {changes{idle(time.Hour), lastUsed(after(-time.Hour))}, gone, 0, plan{why: "nobody used it for its idleTTL, 1h0m0s"}},
		"last user just went":           {changes{idle(time.Hour), lastUsed(after(-5 * time.Hour)), recordedUsers}, gone, 0, plan{run: true, after: time.Hour}},
		"no time to idle":               {changes{idle(0), recordedUsers}, gone, 0, plan{why: "nobody used it for its idleTTL, 0s"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dc := cachetest.Minimal()
			dc.CreationTimestamp = after(-24 * time.Hour)
			for _, change := range c.dc {
				change(dc)
			}
			mu.Lock()
			suspendedAt := since[dc]
			mu.Unlock()
			if diff := cmp.Diff(c.want, planFor(dc, owner{phase: c.owner, suspended: suspendedAt}, c.users, cachetest.Noon.Time), cmp.AllowUnexported(plan{})); diff != "" {
				t.Errorf("plan differs (-want +got):\n%s", diff)
			}
		})
	}
}
