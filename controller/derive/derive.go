// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package derive runs the step of a DataCache that puts a dataset into it (spec.arrow.derive), and says how far it is.
package derive

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/engine"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/controller/podstate"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/internal/words"
)

const (
	// lookEvery is how often a step that goes on is looked at: no event tells that a Job can't create its pods.
	lookEvery = 5 * time.Second
	// seenWithin is how long the cache's status may take to list a dataset.
	seenWithin = time.Minute
	// longest is below the maximum length of a condition's message.
	longest = 1000
)

// Reconciler runs the Jobs of DataCaches. Jobs are read by name, and not by an informer, since most of a cluster's are not ours.
type Reconciler struct {
	kube.Applier
	Warnings *podstate.Warnings
	Now      func() time.Time
}

// Setup registers the Reconciler, which looks at a DataCache when it changes or a pod of its step.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("datacache-derive").
		For(&v1alpha1.DataCache{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, pod client.Object) []reconcile.Request {
			name := pod.GetLabels()[wellknown.LabelStepOf]
			if name == "" {
				return nil
			}
			return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: pod.GetNamespace(), Name: name}}}
		})).
		Complete(r)
}

// Reconcile makes, replaces or deletes the Job, and sets the condition Derived.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	dc := &v1alpha1.DataCache{}
	if err := r.Client.Get(ctx, request.NamespacedName, dc); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	wanted := dc.Spec.Arrow != nil && dc.Spec.Arrow.Derive != nil && dc.Status.State != v1alpha1.StateReleased
	has := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionDerived) != nil
	if dc.DeletionTimestamp != nil || !wanted && !has || wanted && dc.Status.State != v1alpha1.StateReady {
		return ctrl.Result{}, nil
	}
	return kube.RequeueExpected(r.run(ctx, dc, wanted))
}

func (r *Reconciler) run(ctx context.Context, dc *v1alpha1.DataCache, wanted bool) (ctrl.Result, error) {
	job := &batchv1.Job{}
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: dc.Namespace, Name: jobName(dc)}, job)
	if apierrors.IsNotFound(err) {
		job, err = nil, nil
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("get Job %s: %w", jobName(dc), err)
	}
	if !wanted {
		if job != nil && metav1.IsControlledBy(job, dc) {
			err = remove(ctx, r.Applier, job)
		}
		return ctrl.Result{}, cmp.Or(err, r.record(ctx, dc, nil))
	}
	want := jobOf(dc)
	if job == nil {
		if err := r.Client.Create(ctx, want); err != nil {
			return ctrl.Result{}, r.Failed("create", want, err)
		}
		job = want
	}
	if !metav1.IsControlledBy(job, dc) {
		taken := &metav1.Condition{Reason: engine.ReasonNameTaken, Message: fmt.Sprintf("Job %s belongs to somebody else: delete or rename it", job.Name)}
		return ctrl.Result{RequeueAfter: lookEvery}, r.record(ctx, dc, taken)
	}
	found, err := r.look(ctx, dc, job)
	if err != nil {
		return ctrl.Result{}, err
	}
	same := job.Annotations[kube.AnnotationPodSettings] == want.Annotations[kube.AnnotationPodSettings]
	if job.DeletionTimestamp != nil || !same || found.again() {
		again := &metav1.Condition{Reason: v1alpha1.ReasonDeriving, Message: "the step begins again"}
		return ctrl.Result{RequeueAfter: lookEvery}, cmp.Or(remove(ctx, r.Applier, job), r.record(ctx, dc, again))
	}
	c := found.condition()
	result := ctrl.Result{RequeueAfter: lookEvery}
	if c.Status == metav1.ConditionTrue || c.Reason == v1alpha1.ReasonDeriveFailed {
		result = ctrl.Result{} // a change of the DataCache's status tells what happens to the dataset
	}
	return result, r.record(ctx, dc, c)
}

// Retry deletes the Job of a step that has failed, so that the step runs again. It is called when a TrainJob begins to use the cache: its author may
// have corrected what made the step fail, but may not have the right to annotate the DataCache.
func Retry(ctx context.Context, k kube.Applier, dc *v1alpha1.DataCache) error {
	if c := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionDerived); c == nil || c.Reason != v1alpha1.ReasonDeriveFailed {
		return nil
	}
	job := &batchv1.Job{}
	switch err := k.Live.Get(ctx, types.NamespacedName{Namespace: dc.Namespace, Name: jobName(dc)}, job); {
	case apierrors.IsNotFound(err) || err == nil && !metav1.IsControlledBy(job, dc):
		return nil
	case err != nil:
		return fmt.Errorf("get Job %s: %w", jobName(dc), err)
	}
	return remove(ctx, k, job)
}

// remove deletes a Job and its pods.
func remove(ctx context.Context, k kube.Applier, job *batchv1.Job) error {
	if job.DeletionTimestamp != nil {
		return nil
	}
	err := k.Client.Delete(ctx, job, client.Preconditions{UID: new(job.UID)}, client.PropagationPolicy(metav1.DeletePropagationForeground))
	if client.IgnoreNotFound(err) != nil {
		return k.Failed("delete", job, err)
	}
	return nil
}

// record sets the condition Derived, and removes it if c is nil.
func (r *Reconciler) record(ctx context.Context, dc *v1alpha1.DataCache, c *metav1.Condition) error {
	old, changed := dc.DeepCopy(), false
	if c == nil {
		changed = meta.RemoveStatusCondition(&dc.Status.Conditions, v1alpha1.ConditionDerived)
	} else {
		c.Type, c.Status, c.ObservedGeneration = v1alpha1.ConditionDerived, cmp.Or(c.Status, metav1.ConditionFalse), dc.Generation
		c.Message, c.LastTransitionTime = words.Cut(c.Message, longest), metav1.NewTime(r.Now())
		changed = meta.SetStatusCondition(&dc.Status.Conditions, *c)
	}
	if !changed {
		return nil
	}
	if err := r.Client.Status().Patch(ctx, dc, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("write the condition Derived of DataCache %s: %w", kube.Qualified(dc), err)
	}
	return nil
}

// look reads what is known of a step.
func (r *Reconciler) look(ctx context.Context, dc *v1alpha1.DataCache, job *batchv1.Job) (f state, err error) {
	f = state{name: dc.Spec.Arrow.Derive.Dataset, job: job, now: r.Now()}
	if at := slices.IndexFunc(dc.Status.Datasets, func(d v1alpha1.Dataset) bool { return d.Name == f.name }); at >= 0 {
		f.dataset = &dc.Status.Datasets[at]
	}
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.InNamespace(dc.Namespace), client.MatchingLabels{wellknown.LabelStepOf: dc.Name}); err != nil {
		return f, fmt.Errorf("list pods of the step of DataCache %s: %w", kube.Qualified(dc), err)
	}
	for i := range pods.Items {
		if metav1.IsControlledBy(&pods.Items[i], job) {
			f.pods = append(f.pods, &pods.Items[i])
		}
	}
	if len(f.pods) == 0 {
		f.warnings, err = r.Warnings.Of(ctx, dc.Namespace)
	}
	return f, err
}
