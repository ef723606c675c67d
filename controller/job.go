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
	"github.com/kubeflow/datacache/controller/derive"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/controller/podstate"
	"github.com/kubeflow/datacache/controller/queue"
	"github.com/kubeflow/datacache/internal/admit"
	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/runtimes"
	"github.com/kubeflow/datacache/internal/view"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// jobReconciler gives a TrainJob its cache: a DataCache of its own, or Services that point to existing ones. cacheReconciler handles
// the DataCaches themselves.
type jobReconciler struct {
	kube.Applier
	queues        *queue.Queues
	events        *eventRecorder
	refusals      *sentences // why TrainJobs currently get no cache
	clusterDomain string
}

// refusal is why a TrainJob gets no cache; its owner must fix it, and a retry does not help.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

func refuse(format string, args ...any) error { return &refusal{fmt.Sprintf(format, args...)} }

// Reconcile starts a job's use of a cache when the job runs, and ends it when the job ends. A job that is created suspended gets its
// cache when it is resumed, or when Kueue has reserved its quota and waits for the cache. One that is suspended later keeps the Service that records its use; its cache's memory is still freed
// (see usersOf).
func (r *jobReconciler) Reconcile(ctx context.Context, job *trainer.TrainJob) (ctrl.Result, error) {
	if isElsewhere(job) {
		return ctrl.Result{}, nil
	}
	is, err := phaseIn(ctx, r.queues, job)
	if err != nil {
		return ctrl.Result{}, err
	}
	switch is {
	case suspended, queued:
		return ctrl.Result{}, nil
	case finished, gone:
		r.events.forget(client.ObjectKeyFromObject(job))
		r.refusals.set(client.ObjectKeyFromObject(job), "")
		return kube.RequeueExpected(ctrl.Result{}, r.leave(ctx, job, servicesOf(job)...))
	}
	parsed := request.Read(job, job.Namespace)
	runtime, err := runtimes.Find(ctx, job.Namespace, parsed.Runtime, r.Client)
	if err != nil || !parsed.Wants(runtime) {
		return ctrl.Result{}, err
	}
	return r.explain(job, r.serve(ctx, job, parsed, request.StepOf(runtime)))
}

// explain reports why the job gets no cache, in its events and, through r.refusals, to its waiting step. If only the job's owner can
// fix the problem there is no retry, otherwise there is.
func (r *jobReconciler) explain(job *trainer.TrainJob, err error) (ctrl.Result, error) {
	key, obstacle := client.ObjectKeyFromObject(job), obstacleOf(err)
	no := (*refusal)(nil)
	final := errors.As(err, &no)
	switch {
	case final:
		obstacle = &podstate.Trouble{Message: no.text}
	case obstacle == nil:
		r.refusals.set(key, "")
		return kube.RequeueExpected(ctrl.Result{}, err)
	}
	ev := warning(EventFailed, "no cache: %s", obstacle.Message)
	r.events.recordOnce(job, ev)
	r.refusals.set(key, ev.message)
	if final {
		return ctrl.Result{}, nil
	}
	return ctrl.Result{RequeueAfter: obstaclePause}, nil
}

// serve creates what the job requests. Which DataCache a job uses is decided once, when it first runs, and recorded: the job's own
// DataCache has an owner reference, another one is named by the job's Service. Later changes to the runtime don't matter.
func (r *jobReconciler) serve(ctx context.Context, job *trainer.TrainJob, parsed *request.Job, step request.Step) error {
	own, err := r.find(ctx, client.ObjectKeyFromObject(job))
	if err != nil {
		return err
	}
	if own != nil && isOwnedBy(own, job) {
		return r.trust(ctx, job, map[string]types.NamespacedName{wellknown.OwnCredentials: client.ObjectKeyFromObject(own)})
	}
	if uses := parsed.Uses(); len(uses) > 1 {
		return r.joinAll(ctx, job, uses)
	}
	used, err := r.used(ctx, job)
	if err != nil {
		return err
	}
	if used != (types.NamespacedName{}) {
		return r.useAgain(ctx, job, parsed, step, used)
	}
	return r.begin(ctx, job, parsed, step, own)
}

// begin decides which DataCache the job uses. own is the DataCache with the job's name, nil if there is none.
func (r *jobReconciler) begin(ctx context.Context, job *trainer.TrainJob, parsed *request.Job, step request.Step, own *v1alpha1.DataCache) error {
	asked, err := requestOf(parsed, step)
	switch {
	case err != nil:
		return err
	case len(asked.References) > 0:
		return r.join(ctx, job, asked.References[0].Key)
	case asked.Shared:
		return r.share(ctx, job, asked)
	case own != nil:
		return ownedByOther(own, job.Name)
	}
	_, err = r.create(ctx, ownCache(job, asked), func(dc *v1alpha1.DataCache) bool { return isOwnedBy(dc, job) })
	return err
}

// useAgain keeps the job at the DataCache that it uses. If that was deleted meanwhile, it is only recreated with the same rows: they
// must not change during a training.
func (r *jobReconciler) useAgain(ctx context.Context, job *trainer.TrainJob, parsed *request.Job, step request.Step, used types.NamespacedName) error {
	dc, err := r.find(ctx, used)
	if err != nil {
		return err
	}
	if dc != nil {
		return r.join(ctx, job, used)
	}
	asked, err := requestOf(parsed, step)
	switch {
	case err != nil:
		return err
	case len(asked.References) > 0 && asked.References[0].Key == used:
		return r.join(ctx, job, used)
	case asked.Shared && asked.Name == used.Name && job.Namespace == used.Namespace:
		return r.share(ctx, job, asked)
	}
	return refuse("DataCache %s, which this TrainJob uses, was deleted, and its runtime asks for other rows by now: make the DataCache again, or a new TrainJob", used)
}

// requestOf returns what the job requests, according to its current runtime.
func requestOf(parsed *request.Job, step request.Step) (*request.Request, error) {
	asked, errs := parsed.Parse(step)
	if len(errs) > 0 {
		return nil, refuse("%v", errs.ToAggregate())
	}
	return asked, nil
}

// join makes the job a user of the only DataCache that it uses.
func (r *jobReconciler) join(ctx context.Context, job *trainer.TrainJob, key types.NamespacedName) error {
	if err := r.trust(ctx, job, map[string]types.NamespacedName{wellknown.OwnCredentials: key}); err != nil {
		return err
	}
	event, err := r.joinAt(ctx, job, wellknown.ServiceName(job.Name), key, true)
	if event != nil {
		r.events.recordOnce(job, event)
	}
	return err
}

// joinAll makes the job a user of several DataCaches, of those that exist also if others do not. Its storageUri, which never changes, says
// which ones they are, so that no record of an earlier decision is needed.
func (r *jobReconciler) joinAll(ctx context.Context, job *trainer.TrainJob, uses []request.Use) error {
	caches := map[string]types.NamespacedName{}
	for _, use := range uses {
		caches[use.Folder] = use.Key
	}
	if err := r.trust(ctx, job, caches); err != nil {
		return err
	}
	var events []*objectEvent
	var refused []string
	for _, use := range uses {
		event, err := r.joinAt(ctx, job, use.Service, use.Key, false)
		no := (*refusal)(nil)
		switch {
		case errors.As(err, &no):
			refused = append(refused, no.text)
		case err != nil:
			return err
		case event != nil:
			events = append(events, event)
		}
	}
	if len(refused) > 0 {
		return refuse("%s", inOne(refused))
	}
	if len(events) > 0 {
		r.events.recordOnce(job, joinEvents(events))
	}
	return nil
}

// joinAt makes the job a user of an existing DataCache, to which its clients are led by the Service, and returns the event that says so; nil
// if there is nothing to say. If the DataCache was deleted, or the job may not use it any more, the job's use ends. alone says that the job
// uses no other.
func (r *jobReconciler) joinAt(ctx context.Context, job *trainer.TrainJob, service string, key types.NamespacedName, alone bool) (*objectEvent, error) {
	dc, err := r.find(ctx, key)
	if err != nil {
		return nil, err
	}
	labels, err := admit.NamespaceLabels(ctx, job.Namespace, dc, r.Live)
	if err != nil {
		return nil, err
	}
	if errs := request.CheckReference(job.Namespace, labels, key, alone, dc); len(errs) > 0 {
		if err := r.leave(ctx, job, service); err != nil {
			return nil, err
		}
		return nil, refuse("%v", errs.ToAggregate())
	}
	return r.use(ctx, job, service, dc)
}

// share makes the job a user of the namespace's cache of these rows, which it creates if it does not exist.
func (r *jobReconciler) share(ctx context.Context, job *trainer.TrainJob, asked *request.Request) error {
	same := func(dc *v1alpha1.DataCache) bool { return isShared(dc, asked) }
	dc, err := r.find(ctx, types.NamespacedName{Namespace: job.Namespace, Name: asked.Name})
	if err != nil {
		return err
	}
	switch {
	case dc == nil:
		dc, err = r.create(ctx, sharedCache(job, asked), same)
	case !same(dc):
		err = ownedByOther(dc, "")
	default:
		err = derive.Retry(ctx, r.Applier, dc)
	}
	if err != nil {
		return err
	}
	if err := r.trust(ctx, job, map[string]types.NamespacedName{wellknown.OwnCredentials: client.ObjectKeyFromObject(dc)}); err != nil {
		return err
	}
	event, err := r.use(ctx, job, wellknown.ServiceName(job.Name), dc)
	if event != nil {
		r.events.recordOnce(job, event)
	}
	return err
}

// isShared reports whether a DataCache is the one that a job wants to share. Files may be those of a DataCache that somebody made by hand.
func isShared(dc *v1alpha1.DataCache, asked *request.Request) bool {
	if files := asked.Cache.Fluid; files != nil {
		return request.FluidDifference(dc.Spec.Fluid, files) == ""
	}
	return dc.Labels[kube.LabelScope] == kube.ScopeNamespace && dc.Spec.Arrow != nil && request.SameRows(dc.Spec.Arrow, asked.Cache.Arrow)
}

// use maintains the Service that points the job to the cache, and returns the event that says so. If the cache's own Service has the name, it
// serves the purpose, and there is nothing to say.
func (r *jobReconciler) use(ctx context.Context, job *trainer.TrainJob, service string, dc *v1alpha1.DataCache) (*objectEvent, error) {
	if dc.Namespace == job.Namespace && wellknown.ServiceName(dc.Name) == service && dc.Spec.Fluid == nil {
		return nil, nil // nothing to say is no error
	}
	want := useService(job, service, dc, r.clusterDomain)
	if _, err := kube.Apply(ctx, r.Applier, want); err != nil {
		return nil, err
	}
	return useEvent(dc, cmp.Or(want.Spec.ExternalName, "claim "+dc.Name)), nil
}

// useEvent says which DataCache a job uses, and what prevents that from running: a new user did not get the earlier event about it.
func useEvent(dc *v1alpha1.DataCache, host string) *objectEvent {
	if is := readyCondition(&dc.Status); view.IsObstacle(is.Reason) {
		return warning(EventProvisioning, "uses DataCache %s at %s: %s: %s", kube.Qualified(dc), host, is.Reason, is.Message)
	}
	return normal(EventProvisioning, "uses DataCache %s at %s", kube.Qualified(dc), host)
}

// leave ends the job's uses of caches that are not its own and that the Services record.
func (r *jobReconciler) leave(ctx context.Context, job *trainer.TrainJob, services ...string) error {
	for _, name := range services {
		service, err := r.service(ctx, r.Client, job, name)
		if err == nil && service != nil {
			err = client.IgnoreNotFound(r.Client.Delete(ctx, service, client.Preconditions{UID: new(service.UID)}))
		}
		if err != nil {
			return fmt.Errorf("end the use of TrainJob %s: %w", kube.Qualified(job), err)
		}
	}
	return nil
}

// used is the only DataCache, not the job's own, that the job is recorded to use; the zero name if there is none. It also reads from the
// API server, since the record may be newer than the informers.
func (r *jobReconciler) used(ctx context.Context, job *trainer.TrainJob) (types.NamespacedName, error) {
	for _, reader := range []client.Reader{r.Client, r.Live} {
		service, err := r.service(ctx, reader, job, wellknown.ServiceName(job.Name))
		if err != nil {
			return types.NamespacedName{}, fmt.Errorf("find the cache that TrainJob %s uses: %w", kube.Qualified(job), err)
		}
		if service != nil {
			return kube.KeyOf(service.Annotations[wellknown.AnnotationUses]), nil
		}
	}
	return types.NamespacedName{}, nil
}

// service returns the Service with the name if it is the job's own, which points to a cache; nil if there is none.
func (r *jobReconciler) service(ctx context.Context, reader client.Reader, job *trainer.TrainJob, name string) (*corev1.Service, error) {
	service := &corev1.Service{}
	err := reader.Get(ctx, types.NamespacedName{Namespace: job.Namespace, Name: name}, service)
	if apierrors.IsNotFound(err) || err == nil && !metav1.IsControlledBy(service, job) {
		return nil, nil // not found is not an error
	}
	return service, err
}

// find returns a DataCache; nil if there is none or it is being deleted.
func (r *jobReconciler) find(ctx context.Context, key types.NamespacedName) (*v1alpha1.DataCache, error) {
	dc := &v1alpha1.DataCache{}
	err := r.Client.Get(ctx, key, dc)
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
	err := r.Client.Create(ctx, want)
	switch {
	case err == nil:
		return want, nil
	case apierrors.IsInvalid(err):
		return nil, refuse("%v", err)
	case !apierrors.IsAlreadyExists(err):
		return nil, r.Failed("create", want, err)
	}
	have := &v1alpha1.DataCache{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(want), have); err != nil {
		return nil, r.Failed("get", want, err)
	}
	if have.DeletionTimestamp != nil {
		return nil, fmt.Errorf("DataCache %s: %w", kube.Qualified(want), kube.ErrGoing)
	}
	if !meant(have) {
		return nil, ownedByOther(have, want.Name)
	}
	return have, nil
}

// ownedByOther is the error for an existing DataCache that is not the one meant. It may belong to a deleted job with the same name
// and still be in deletion.
func ownedByOther(dc *v1alpha1.DataCache, job string) error {
	owner := kube.JobOf(dc)
	if owner == nil {
		return &kube.ForeignError{Kind: "DataCache", Name: kube.Qualified(dc), Owner: "somebody who made it for other rows"}
	}
	if owner.Name == job {
		return fmt.Errorf("DataCache %s: %w", kube.Qualified(dc), kube.ErrGoing)
	}
	return &kube.ForeignError{Kind: "DataCache", Name: kube.Qualified(dc), Owner: "TrainJob " + owner.Name}
}

func isOwnedBy(dc *v1alpha1.DataCache, job *trainer.TrainJob) bool {
	owner := kube.JobOf(dc)
	return owner != nil && owner.UID == job.UID
}

// ownCache returns a DataCache that is deleted with its job. Its pods use the job's queue, and the job's training pods prefer its
// zone.
func ownCache(job *trainer.TrainJob, asked *request.Request) *v1alpha1.DataCache {
	dc := &v1alpha1.DataCache{
		ObjectMeta: metav1.ObjectMeta{
			Name: job.Name, Namespace: job.Namespace, Labels: map[string]string{wellknown.LabelManagedBy: wellknown.ManagedBy},
			OwnerReferences: []metav1.OwnerReference{jobReference(job, false)},
		},
		Spec: asked.Cache,
	}
	if unique := job.Annotations[wellknown.AnnotationPlacement]; unique != "" && validation.IsValidLabelValue(unique) == nil {
		dc.Labels[wellknown.LabelPlacement] = unique
	}
	for _, label := range []string{kube.LabelQueue, kube.LabelPriority} {
		if value, ok := job.Labels[label]; ok {
			dc.Labels[label] = value
		}
	}
	return dc
}

// sharedCache returns a DataCache that outlives the job that creates it; its idleTTL frees it.
func sharedCache(job *trainer.TrainJob, asked *request.Request) *v1alpha1.DataCache {
	dc := ownCache(job, asked)
	dc.Name, dc.OwnerReferences = asked.Name, nil
	dc.Labels[kube.LabelScope] = kube.ScopeNamespace
	return dc
}
