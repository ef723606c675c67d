// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// cacheReconciler gives a DataCache its memory while somebody wants it, and says how it is doing.
type cacheReconciler struct {
	applier
	arrow   *arrowEngine
	events  *eventRecorder
	metrics *metrics
	now     func() time.Time
}

// engineOf is the engine that the DataCache's spec names; nil for one that this release doesn't know.
func (r *cacheReconciler) engineOf(dc *v1alpha1.DataCache) engine {
	if dc.Spec.Arrow != nil {
		return r.arrow
	}
	return nil
}

// Reconcile reads, decides, acts and writes the status once. Everything read but the heads' word comes from informers.
func (r *cacheReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	dc := &v1alpha1.DataCache{}
	err := r.client.Get(ctx, request.NamespacedName, dc)
	if apierrors.IsNotFound(err) {
		return requeueExpected(ctrl.Result{}, r.arrow.releaseOrphan(ctx, request.NamespacedName))
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("get DataCache %s: %w", request.NamespacedName, err)
	}
	e := r.engineOf(dc)
	if e == nil {
		return ctrl.Result{}, nil
	}
	if dc.DeletionTimestamp != nil {
		return requeueExpected(ctrl.Result{}, e.release(ctx, dc)) // the garbage collector takes the rest, unless it is told to leave it
	}
	return requeueExpected(r.reconcile(ctx, dc, e))
}

func (r *cacheReconciler) reconcile(ctx context.Context, dc *v1alpha1.DataCache, e engine) (ctrl.Result, error) {
	f := facts{now: metav1.NewTime(r.now())}
	if err := r.gather(ctx, dc, &f); err != nil {
		return ctrl.Result{}, err
	}
	f.plan = planFor(dc, f.owner, len(f.users), f.now.Time)
	if f.plan.remove {
		return ctrl.Result{}, r.remove(ctx, dc)
	}
	if mayExplain(dc, f.plan) {
		wait, err := r.recordFinalState(ctx, dc, e, &f)
		if err != nil || wait {
			return ctrl.Result{RequeueAfter: time.Second}, err
		}
	}
	if err := r.act(ctx, dc, e, &f); err != nil {
		return ctrl.Result{}, err
	}
	snapshot := dc.Status.Snapshot
	next := statusOf(dc, f)
	if err := r.record(ctx, dc, e, &next); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if next.Snapshot != snapshot && f.plan.run {
		return ctrl.Result{RequeueAfter: conflictPause}, nil // the pin is to be handed to the pods
	}
	return ctrl.Result{RequeueAfter: requeueAfter(&next, f)}, nil
}

// recordFinalState observes a cache that is to go, and records a failure before its pods go: once they do, nobody can be asked again should
// the write be lost to another. wait: something that runs did not answer and may know why the TrainJob failed.
func (r *cacheReconciler) recordFinalState(ctx context.Context, dc *v1alpha1.DataCache, e engine, f *facts) (wait bool, err error) {
	if f.observation, err = e.observe(ctx, dc); err != nil {
		return false, err
	}
	if f.silent {
		return f.now.Sub(f.owner.failed) <= answerGrace, nil
	}
	if !f.answers || f.condition.state != v1alpha1.StateFailed {
		return false, nil
	}
	next := statusOf(dc, *f)
	return false, client.IgnoreNotFound(r.record(ctx, dc, e, &next))
}

// gather finds the owning job's state and the users.
func (r *cacheReconciler) gather(ctx context.Context, dc *v1alpha1.DataCache, f *facts) error {
	f.owner.phase = gone
	if ref := ownerOf(dc); ref != nil {
		job, err := findJob(ctx, r.client, types.NamespacedName{Namespace: dc.Namespace, Name: ref.Name}, ref.UID)
		if err != nil {
			return err
		}
		f.owner = ownerState(job)
	}
	users, err := usersOf(ctx, r.client, r.live, dc)
	f.users = users
	return err
}

// act makes the objects be as planned, and observes those that are to stay. What somebody must fix is no error to try again at once:
// f.obstacle says it.
func (r *cacheReconciler) act(ctx context.Context, dc *v1alpha1.DataCache, e engine, f *facts) error {
	var err error
	switch {
	case !f.plan.run:
		if err = e.release(ctx, dc); err != nil || f.endpoint != "" {
			return err
		}
	case f.plan.hold:
	case f.plan.restart:
		err = e.release(ctx, dc)
	default:
		err = e.provision(ctx, dc)
		if f.obstacle = obstacleOf(err); f.obstacle != nil {
			err = nil // pods that run serve all the same
		}
	}
	if err != nil {
		return err
	}
	f.observation, err = e.observe(ctx, dc)
	return err
}

// remove deletes a DataCache that nobody used for its deleteAfterIdle, unless it was changed meanwhile.
func (r *cacheReconciler) remove(ctx context.Context, dc *v1alpha1.DataCache) error {
	err := r.client.Delete(ctx, dc, client.Preconditions{UID: new(dc.UID), ResourceVersion: new(dc.ResourceVersion)})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete idle DataCache %s: %w", qualified(dc), err)
	}
	return nil
}

// record writes the status if it differs, under the resource version that it was made from: only then did the step happen just now, and
// only then are its event and metrics told. Who loses to another write looks again.
func (r *cacheReconciler) record(ctx context.Context, dc *v1alpha1.DataCache, e engine, next *v1alpha1.DataCacheStatus) error {
	if equality.Semantic.DeepEqual(&dc.Status, next) {
		return nil
	}
	old := dc.DeepCopy()
	dc.Status = *next
	if err := r.client.Status().Patch(ctx, dc, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("write status of DataCache %s: %w", qualified(dc), err)
	}
	r.metrics.observe(&old.Status, next, r.now())
	ev := change(dc, e, &old.Status, next)
	if ev == nil {
		return nil
	}
	r.events.record(dc, ev)
	return r.recordOnUsers(ctx, old.Status.UsedBy, next.UsedBy, ev)
}

// recordOnUsers records it on the TrainJobs that use the cache, or did until now: the SDK shows a TrainJob's events alone.
func (r *cacheReconciler) recordOnUsers(ctx context.Context, before, now []string, ev *objectEvent) error {
	names := slices.Compact(slices.Sorted(slices.Values(slices.Concat(before, now))))
	for _, name := range names[:min(len(names), maxTold)] {
		job := &trainer.TrainJob{}
		err := r.client.Get(ctx, keyOf(name), job)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("record an event on TrainJob %s: %w", name, err)
		}
		r.events.record(job, ev)
	}
	return nil
}
