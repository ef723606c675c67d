// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/arrow"
	"github.com/kubeflow/datacache/controller/engine"
	"github.com/kubeflow/datacache/controller/fluid"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/controller/queue"
)

// cacheReconciler runs a DataCache's pods while they are wanted, and maintains its status.
type cacheReconciler struct {
	kube.Applier
	arrow   *arrow.Engine
	fluid   *fluid.Engine
	events  *eventRecorder
	metrics *metrics
	now     func() time.Time

	queues    *queue.Queues
	waits     *sentences // what TrainJobs with a Ready cache wait for
	idleAfter time.Duration
	pulses    sync.Map // pulse by types.NamespacedName of DataCaches that are Ready and used
}

// engineOf returns the engine that the DataCache's spec names; nil for one that this release doesn't support.
func (r *cacheReconciler) engineOf(dc *v1alpha1.DataCache) engine.Engine {
	switch {
	case dc.Spec.Arrow != nil:
		return r.arrow
	case dc.Spec.Fluid != nil:
		return r.fluid
	}
	return nil
}

// Reconcile reads the state, decides, acts, and writes the status once. Everything it reads comes from informers, except for the
// answers of heads and for Fluid's objects.
func (r *cacheReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	dc := &v1alpha1.DataCache{}
	err := r.Client.Get(ctx, request.NamespacedName, dc)
	if apierrors.IsNotFound(err) {
		r.pulses.Delete(request.NamespacedName)
		return kube.RequeueExpected(ctrl.Result{}, errors.Join(r.arrow.ReleaseOrphan(ctx, request.NamespacedName), r.fluid.ReleaseOrphan(ctx, request.NamespacedName)))
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("get DataCache %s: %w", request.NamespacedName, err)
	}
	e := r.engineOf(dc)
	if e == nil {
		return ctrl.Result{}, nil
	}
	if dc.DeletionTimestamp != nil {
		return kube.RequeueExpected(ctrl.Result{}, e.Release(ctx, dc)) // the garbage collector deletes the rest, unless the deletion orphans it
	}
	return kube.RequeueExpected(r.reconcile(ctx, dc, e))
}

func (r *cacheReconciler) reconcile(ctx context.Context, dc *v1alpha1.DataCache, e engine.Engine) (ctrl.Result, error) {
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
	r.read(dc, &f)
	snapshot := dc.Status.Snapshot
	next := statusOf(dc, f)
	if err := r.record(ctx, dc, e, &next); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if next.Snapshot != snapshot && f.plan.run {
		return ctrl.Result{RequeueAfter: kube.ConflictPause}, nil // the pods must get the pinned snapshot
	}
	return ctrl.Result{RequeueAfter: requeueAfter(&next, f)}, nil
}

// recordFinalState observes a cache that is about to be released and records a failure before its pods are deleted: afterwards there
// is nobody left to query if the write of the status fails with a conflict. wait means that something is running that did not answer
// and may know why the TrainJob failed.
func (r *cacheReconciler) recordFinalState(ctx context.Context, dc *v1alpha1.DataCache, e engine.Engine, f *facts) (wait bool, err error) {
	if f.Observation, err = e.Observe(ctx, dc); err != nil {
		return false, err
	}
	if f.Silent {
		return f.now.Sub(f.owner.failed) <= answerGrace, nil
	}
	if !f.Answers || f.Condition.State != v1alpha1.StateFailed {
		return false, nil
	}
	next := statusOf(dc, *f)
	return false, client.IgnoreNotFound(r.record(ctx, dc, e, &next))
}

// gather determines the owning job's phase and the users.
func (r *cacheReconciler) gather(ctx context.Context, dc *v1alpha1.DataCache, f *facts) error {
	f.owner.phase = gone
	if ref := kube.JobOf(dc); ref != nil {
		job, err := findJob(ctx, r.Client, types.NamespacedName{Namespace: dc.Namespace, Name: ref.Name}, ref.UID)
		if err != nil {
			return err
		}
		is, err := phaseIn(ctx, r.queues, job)
		if err != nil {
			return err
		}
		f.owner = ownerState(job, is)
	}
	users, err := usersOf(ctx, r.Client, r.Live, r.queues, dc)
	f.users = users
	return err
}

// act applies the plan and observes the objects that remain. Problems that people must fix are not returned as errors, which would be
// retried at once, but set as f.obstacle.
func (r *cacheReconciler) act(ctx context.Context, dc *v1alpha1.DataCache, e engine.Engine, f *facts) error {
	var err error
	switch {
	case !f.plan.run:
		if err = e.Release(ctx, dc); err != nil || f.Endpoint != "" {
			return err
		}
	case f.plan.hold:
	case f.plan.restart:
		err = e.Release(ctx, dc)
	default:
		err = e.Provision(ctx, dc)
		if f.obstacle = obstacleOf(err); f.obstacle != nil {
			err = nil // running pods can serve nevertheless
		}
	}
	if err != nil {
		return err
	}
	f.Observation, err = e.Observe(ctx, dc)
	return err
}

// read determines whether the TrainJobs that use the cache read it. The pulse begins anew when they stop waiting for something else.
func (r *cacheReconciler) read(dc *v1alpha1.DataCache, f *facts) {
	key := client.ObjectKeyFromObject(dc)
	f.reading = waitsOf(dc.Namespace, f.users, r.waits)
	if f.reading != nil || len(f.users) == 0 || f.Condition.State != v1alpha1.StateReady {
		r.pulses.Delete(key)
		return
	}
	if !f.Answers || dc.Spec.Arrow == nil { // unknown
		return
	}
	before, _ := r.pulses.Load(key)
	last, _ := before.(pulse)
	last = last.next(f.now.Time, f.Readers)
	r.pulses.Store(key, last)
	f.reading = last.reading(f.now.Time, r.idleAfter)
}

// remove deletes a DataCache that nobody used for its deleteAfterIdle, unless it was changed meanwhile.
func (r *cacheReconciler) remove(ctx context.Context, dc *v1alpha1.DataCache) error {
	err := r.Client.Delete(ctx, dc, client.Preconditions{UID: new(dc.UID), ResourceVersion: new(dc.ResourceVersion)})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete idle DataCache %s: %w", kube.Qualified(dc), err)
	}
	return nil
}

// record writes the status if it changed, with the resourceVersion that it was derived from. Events and metrics are emitted only if
// the write succeeds, so each change is reported once. After a conflict the cache is reconciled again.
func (r *cacheReconciler) record(ctx context.Context, dc *v1alpha1.DataCache, e engine.Engine, next *v1alpha1.DataCacheStatus) error {
	if equality.Semantic.DeepEqual(&dc.Status, next) {
		return nil
	}
	old := dc.DeepCopy()
	dc.Status = *next
	if err := r.Client.Status().Patch(ctx, dc, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("write status of DataCache %s: %w", kube.Qualified(dc), err)
	}
	r.metrics.observe(dc, &old.Status, next, r.now())
	ev := change(dc, e, &old.Status, next)
	if ev == nil {
		ev = readEvent(dc, &old.Status, next)
	}
	if ev == nil {
		return nil
	}
	r.events.record(dc, ev)
	return r.recordOnUsers(ctx, old.Status.UsedBy, next.UsedBy, ev)
}

// recordOnUsers records the event on the TrainJobs that use the cache or used it until now: the SDK only shows events of TrainJobs.
func (r *cacheReconciler) recordOnUsers(ctx context.Context, before, now []string, ev *objectEvent) error {
	names := slices.Compact(slices.Sorted(slices.Values(slices.Concat(before, now))))
	for _, name := range names[:min(len(names), maxRecordedUsers)] {
		job := &trainer.TrainJob{}
		err := r.Client.Get(ctx, kube.KeyOf(name), job)
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
