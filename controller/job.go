// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/admit"
	"github.com/kubeflow/datacache/internal/inject"
	"github.com/kubeflow/datacache/internal/runtimes"
)

// jobReconciler gives a TrainJob its cache: a DataCache of its own, or a Service that points to a shared one. cacheReconciler handles
// the DataCache itself.
type jobReconciler struct {
	applier
	events        *eventRecorder
	refusals      *refusals
	clusterDomain string
}

// refusal is why a TrainJob gets no cache; its owner must fix it, and a retry does not help.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

func refuse(format string, args ...any) error { return &refusal{fmt.Sprintf(format, args...)} }

// Reconcile starts a job's use of a cache when the job runs, and ends it when the job ends. A job that is created suspended gets its
// cache when it is resumed. One that is suspended later keeps the Service that records its use; its cache's memory is still freed
// (see usersOf).
func (r *jobReconciler) Reconcile(ctx context.Context, job *trainer.TrainJob) (ctrl.Result, error) {
	if isElsewhere(job) {
		return ctrl.Result{}, nil
	}
	switch phaseOf(job) {
	case suspended:
		return ctrl.Result{}, nil
	case finished, gone:
		r.events.forget(client.ObjectKeyFromObject(job))
		r.refusals.set(client.ObjectKeyFromObject(job), "")
		return requeueExpected(ctrl.Result{}, r.leave(ctx, job))
	}
	runtime, err := runtimes.Find(ctx, job.Namespace, inject.RuntimeRef(job), r.client)
	if err != nil || !inject.Asks(job, runtime) {
		return ctrl.Result{}, err
	}
	return r.explain(job, r.serve(ctx, job, inject.StepOf(runtime)))
}

// explain reports why the job gets no cache, in its events and, through r.refusals, to its waiting step. If only the job's owner can
// fix the problem there is no retry, otherwise there is.
func (r *jobReconciler) explain(job *trainer.TrainJob, err error) (ctrl.Result, error) {
	key, obstacle := client.ObjectKeyFromObject(job), obstacleOf(err)
	no := (*refusal)(nil)
	final := errors.As(err, &no)
	switch {
	case final:
		obstacle = &trouble{message: no.text}
	case obstacle == nil:
		r.refusals.set(key, "")
		return requeueExpected(ctrl.Result{}, err)
	}
	ev := warning(EventFailed, "no cache: %s", obstacle.message)
	r.events.recordOnce(job, ev)
	r.refusals.set(key, ev.message)
	if final {
		return ctrl.Result{}, nil
	}
	return ctrl.Result{RequeueAfter: obstaclePause}, nil
}

// serve creates what the job requests. Which DataCache a job uses is decided once, when it first runs, and recorded: the job's own
// DataCache has an owner reference, another one is named by the job's Service. Later changes to the runtime don't matter.
func (r *jobReconciler) serve(ctx context.Context, job *trainer.TrainJob, step inject.Step) error {
	own, err := r.find(ctx, client.ObjectKeyFromObject(job))
	if err != nil {
		return err
	}
	if own != nil && isOwnedBy(own, job) {
		return nil
	}
	used, err := r.used(ctx, job)
	if err != nil {
		return err
	}
	if used != (types.NamespacedName{}) {
		return r.useAgain(ctx, job, step, used)
	}
	return r.begin(ctx, job, step, own)
}

// begin decides which DataCache the job uses. own is the DataCache with the job's name, nil if there is none.
func (r *jobReconciler) begin(ctx context.Context, job *trainer.TrainJob, step inject.Step, own *v1alpha1.DataCache) error {
	request, err := requestOf(job, step)
	switch {
	case err != nil:
		return err
	case request.Reference != nil:
		return r.join(ctx, job, *request.Reference)
	case request.Shared:
		return r.share(ctx, job, request)
	case own != nil:
		return ownedByOther(own, job.Name)
	}
	_, err = r.create(ctx, ownCache(job, request), func(dc *v1alpha1.DataCache) bool { return isOwnedBy(dc, job) })
	return err
}

// useAgain keeps the job at the DataCache that it uses. If that was deleted meanwhile, it is only recreated with the same rows: they
// must not change during a training.
func (r *jobReconciler) useAgain(ctx context.Context, job *trainer.TrainJob, step inject.Step, used types.NamespacedName) error {
	dc, err := r.find(ctx, used)
	if err != nil {
		return err
	}
	if dc != nil {
		return r.join(ctx, job, used)
	}
	request, err := requestOf(job, step)
	switch {
	case err != nil:
		return err
	case request.Reference != nil && *request.Reference == used:
		return r.join(ctx, job, used)
	case request.Shared && request.Name == used.Name && job.Namespace == used.Namespace:
		return r.share(ctx, job, request)
	}
	return refuse("DataCache %s, which this TrainJob uses, was deleted, and its runtime asks for other rows by now: make the DataCache again, or a new TrainJob", used)
}

// requestOf returns what the job requests, according to its current runtime.
func requestOf(job *trainer.TrainJob, step inject.Step) (*inject.Request, error) {
	request, errs := inject.Parse(job, step)
	if len(errs) > 0 {
		return nil, refuse("%v", errs.ToAggregate())
	}
	return request, nil
}

// join makes the job a user of an existing DataCache. If that was deleted, or the job may not use it any more, the job's use ends.
func (r *jobReconciler) join(ctx context.Context, job *trainer.TrainJob, key types.NamespacedName) error {
	dc, err := r.find(ctx, key)
	if err != nil {
		return err
	}
	labels, err := admit.NamespaceLabels(ctx, job.Namespace, dc, r.live)
	if err != nil {
		return err
	}
	if errs := inject.CheckReference(job.Namespace, labels, key, dc); len(errs) > 0 {
		if err := r.leave(ctx, job); err != nil {
			return err
		}
		return refuse("%v", errs.ToAggregate())
	}
	return r.use(ctx, job, dc)
}

// share makes the job a user of the namespace's cache of these rows, which it creates if it does not exist.
func (r *jobReconciler) share(ctx context.Context, job *trainer.TrainJob, request *inject.Request) error {
	same := func(dc *v1alpha1.DataCache) bool { return isShared(dc, request) }
	dc, err := r.find(ctx, types.NamespacedName{Namespace: job.Namespace, Name: request.Name})
	if err != nil {
		return err
	}
	if dc == nil {
		dc, err = r.create(ctx, sharedCache(job, request), same)
	} else if !same(dc) {
		err = ownedByOther(dc, "")
	}
	if err != nil {
		return err
	}
	return r.use(ctx, job, dc)
}

// isShared reports whether a DataCache is the one that a job wants to share. Files may be those of a DataCache that somebody made by hand.
func isShared(dc *v1alpha1.DataCache, request *inject.Request) bool {
	if files := request.Cache.Fluid; files != nil {
		return inject.FluidDifference(dc.Spec.Fluid, files) == ""
	}
	return dc.Labels[LabelScope] == ScopeNamespace && dc.Spec.Arrow != nil && inject.SameRows(dc.Spec.Arrow, request.Cache.Arrow)
}

// use maintains the Service that points the job to the cache. If both have the same name, the cache's own Service serves the purpose, where it
// has one.
func (r *jobReconciler) use(ctx context.Context, job *trainer.TrainJob, dc *v1alpha1.DataCache) error {
	if dc.Namespace == job.Namespace && dc.Name == job.Name && dc.Spec.Fluid == nil {
		return nil
	}
	want := useService(job, dc, r.clusterDomain)
	if _, err := apply(ctx, r.applier, want); err != nil {
		return err
	}
	r.events.recordOnce(job, useEvent(dc, cmp.Or(want.Spec.ExternalName, "claim "+dc.Name)))
	return nil
}

// useEvent says which DataCache a job uses, and what prevents that from running: a new user did not get the earlier event about it.
func useEvent(dc *v1alpha1.DataCache, host string) *objectEvent {
	if is := readyCondition(&dc.Status); isObstacle(is.reason) {
		return warning(EventProvisioning, "uses DataCache %s at %s: %s: %s", qualified(dc), host, is.reason, is.message)
	}
	return normal(EventProvisioning, "uses DataCache %s at %s", qualified(dc), host)
}

// leave ends the job's use of a cache that is not its own.
func (r *jobReconciler) leave(ctx context.Context, job *trainer.TrainJob) error {
	service, err := r.service(ctx, r.client, job)
	if err == nil && service != nil {
		err = client.IgnoreNotFound(r.client.Delete(ctx, service, client.Preconditions{UID: new(service.UID)}))
	}
	if err != nil {
		return fmt.Errorf("end the use of TrainJob %s: %w", qualified(job), err)
	}
	return nil
}

// used is the DataCache, not the job's own, that the job is recorded to use; the zero name if there is none. It also reads from the
// API server, since the record may be newer than the informers.
func (r *jobReconciler) used(ctx context.Context, job *trainer.TrainJob) (types.NamespacedName, error) {
	for _, reader := range []client.Reader{r.client, r.live} {
		service, err := r.service(ctx, reader, job)
		if err != nil {
			return types.NamespacedName{}, fmt.Errorf("find the cache that TrainJob %s uses: %w", qualified(job), err)
		}
		if service != nil {
			return keyOf(service.Annotations[inject.AnnotationUses]), nil
		}
	}
	return types.NamespacedName{}, nil
}

// service returns the job's own Service, which points to a shared cache; nil if there is none.
func (r *jobReconciler) service(ctx context.Context, reader client.Reader, job *trainer.TrainJob) (*corev1.Service, error) {
	service := &corev1.Service{}
	err := reader.Get(ctx, types.NamespacedName{Namespace: job.Namespace, Name: inject.ServiceName(job.Name)}, service)
	if apierrors.IsNotFound(err) || err == nil && !metav1.IsControlledBy(service, job) {
		return nil, nil // not found is not an error
	}
	return service, err
}

// find returns a DataCache; nil if there is none or it is being deleted.
func (r *jobReconciler) find(ctx context.Context, key types.NamespacedName) (*v1alpha1.DataCache, error) {
	dc := &v1alpha1.DataCache{}
	err := r.client.Get(ctx, key, dc)
	if apierrors.IsNotFound(err) || err == nil && dc.DeletionTimestamp != nil {
		return nil, nil // not found is not an error
	}
	if err != nil {
		return nil, fmt.Errorf("get DataCache %s: %w", key, err)
	}
	return dc, nil
}

// create creates a DataCache, or returns the existing one with that name if meant accepts it. If the API server rejects it, the job's
// owner must fix that.
func (r *jobReconciler) create(ctx context.Context, want *v1alpha1.DataCache, meant func(*v1alpha1.DataCache) bool) (*v1alpha1.DataCache, error) {
	err := r.client.Create(ctx, want)
	switch {
	case err == nil:
		return want, nil
	case apierrors.IsInvalid(err):
		return nil, refuse("%v", err)
	case !apierrors.IsAlreadyExists(err):
		return nil, r.failed("create", want, err)
	}
	have := &v1alpha1.DataCache{}
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(want), have); err != nil {
		return nil, r.failed("get", want, err)
	}
	if have.DeletionTimestamp != nil {
		return nil, fmt.Errorf("DataCache %s: %w", qualified(want), errGoing)
	}
	if !meant(have) {
		return nil, ownedByOther(have, want.Name)
	}
	return have, nil
}

// ownedByOther is the error for an existing DataCache that is not the one meant. It may belong to a deleted job with the same name
// and still be in deletion.
func ownedByOther(dc *v1alpha1.DataCache, job string) error {
	owner := ownerOf(dc)
	if owner == nil {
		return &foreignError{kind: "DataCache", name: qualified(dc), owner: "somebody who made it for other rows"}
	}
	if owner.Name == job {
		return fmt.Errorf("DataCache %s: %w", qualified(dc), errGoing)
	}
	return &foreignError{kind: "DataCache", name: qualified(dc), owner: "TrainJob " + owner.Name}
}

func isOwnedBy(dc *v1alpha1.DataCache, job *trainer.TrainJob) bool {
	owner := ownerOf(dc)
	return owner != nil && owner.UID == job.UID
}

// ownCache returns a DataCache that is deleted with its job. Its pods use the job's queue, and the job's training pods prefer its
// zone.
func ownCache(job *trainer.TrainJob, request *inject.Request) *v1alpha1.DataCache {
	dc := &v1alpha1.DataCache{
		ObjectMeta: metav1.ObjectMeta{
			Name: job.Name, Namespace: job.Namespace, Labels: map[string]string{LabelManagedBy: ManagedBy},
			OwnerReferences: []metav1.OwnerReference{jobReference(job, false)},
		},
		Spec: request.Cache,
	}
	if unique := job.Annotations[inject.AnnotationPlacement]; unique != "" && validation.IsValidLabelValue(unique) == nil {
		dc.Labels[inject.LabelPlacement] = unique
	}
	for _, label := range []string{labelQueue, labelPriority} {
		if value, ok := job.Labels[label]; ok {
			dc.Labels[label] = value
		}
	}
	return dc
}

// sharedCache returns a DataCache that outlives the job that creates it; its idleTTL frees it.
func sharedCache(job *trainer.TrainJob, request *inject.Request) *v1alpha1.DataCache {
	dc := ownCache(job, request)
	dc.Name, dc.OwnerReferences = request.Name, nil
	dc.Labels[LabelScope] = ScopeNamespace
	return dc
}
