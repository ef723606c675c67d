// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/controller/queue"
	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/runtimes"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// queueReader determines what Workloads of Kueue wait for.
type queueReader struct {
	client   client.Reader
	queues   *queue.Queues
	refusals *sentences // why TrainJobs get no cache
}

// waits returns what a Workload with quota waits for: until all caches of its TrainJob are loaded. Where a cache failed, or the TrainJob gets
// none, its step says so when it runs.
func (r *queueReader) waits(ctx context.Context, w *queue.Workload) (queue.Wait, error) {
	job, err := r.jobOf(ctx, w)
	if err != nil {
		return queue.Wait{}, err
	}
	if job == nil {
		return queue.Wait{Done: true, Message: "it uses no cache"}, nil
	}
	if r.refusals.of(client.ObjectKeyFromObject(job)) != "" {
		return queue.Wait{Done: true, Message: "it gets no cache: the events of the TrainJob say why"}, nil
	}
	caches, err := r.cachesOf(ctx, job)
	if err != nil {
		return queue.Wait{}, err
	}
	if len(caches) < max(1, len(request.Read(job, job.Namespace).References)) {
		return queue.Wait{Message: "its DataCache does not exist yet"}, nil
	}
	for _, dc := range caches {
		switch dc.Status.State {
		case v1alpha1.StateReady, v1alpha1.StateDegraded, v1alpha1.StateFailed:
			continue
		}
		since, err := r.queues.WaitsSince(ctx, types.NamespacedName{Namespace: dc.Namespace, Name: wellknown.CacheName(dc.Name)})
		if err != nil {
			return queue.Wait{}, err
		}
		wait := queue.Wait{Message: fmt.Sprintf("DataCache %s: %s", kube.Qualified(dc), readyCondition(&dc.Status).Reason), Since: since}
		if !since.IsZero() {
			wait.Message = fmt.Sprintf("DataCache %s waits for quota", kube.Qualified(dc))
		}
		return wait, nil
	}
	return queue.Wait{Done: true, Message: "its cache is loaded, or failed, which its step says"}, nil
}

// jobOf returns the TrainJob of a Workload; nil if it is of another kind or uses no cache.
func (r *queueReader) jobOf(ctx context.Context, w *queue.Workload) (*trainer.TrainJob, error) {
	owner := metav1.GetControllerOf(w)
	if owner == nil || owner.Kind != trainer.TrainJobKind {
		return nil, nil // others use no cache
	}
	job, err := findJob(ctx, r.client, types.NamespacedName{Namespace: w.Namespace, Name: owner.Name}, owner.UID)
	if err != nil || job == nil || isElsewhere(job) {
		return nil, err
	}
	parsed := request.Read(job, job.Namespace)
	runtime, err := runtimes.Find(ctx, job.Namespace, parsed.Runtime, r.client)
	if err != nil || !parsed.Wants(runtime) {
		return nil, err
	}
	return job, nil
}

// cachesOf returns the DataCaches that a TrainJob uses.
func (r *queueReader) cachesOf(ctx context.Context, job *trainer.TrainJob) (found []*v1alpha1.DataCache, err error) {
	for i, request := range cachesOfJob(r.client)(ctx, job) {
		dc := &v1alpha1.DataCache{}
		err := r.client.Get(ctx, request.NamespacedName, dc)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("get DataCache %s: %w", request, err)
		}
		same := func(other *v1alpha1.DataCache) bool {
			return client.ObjectKeyFromObject(other) == request.NamespacedName
		}
		if err == nil && (i > 0 || isNamesake(job, dc)) && !slices.ContainsFunc(found, same) { // the first one may only have the TrainJob's name
			found = append(found, dc)
		}
	}
	return found, nil
}

// newQueues returns nil without Kueue.
func newQueues(ctx context.Context, mgr ctrl.Manager, o Options) (*queue.Queues, error) {
	if !o.Kueue {
		return nil, nil // valid, see queue.Queues
	}
	return &queue.Queues{Reader: mgr.GetCache()}, queue.AddIndex(ctx, mgr.GetFieldIndexer())
}

// setupQueues answers the AdmissionCheck.
func setupQueues(mgr ctrl.Manager, o Options, k kube.Applier, r *queueReader) error {
	if r.queues == nil {
		return nil
	}
	checks := &queue.Checks{Applier: k, Queues: r.queues, Waits: r.waits, Now: o.Now, Patience: o.QueuePatience}
	err := ctrl.NewControllerManagedBy(mgr).Named("datacache-admissioncheck").For(queue.NewCheck()).Complete(checks.Activate())
	if err != nil {
		return fmt.Errorf("set up the controller of AdmissionChecks: %w", err)
	}
	err = ctrl.NewControllerManagedBy(mgr).Named("datacache-workload").For(queue.NewWorkload()).Complete(withTraces(o.Tracer, "Workload", checks))
	if err != nil {
		return fmt.Errorf("set up the controller of Workloads: %w", err)
	}
	return nil
}

// jobOfWorkload maps a Workload to its TrainJob.
func jobOfWorkload(_ context.Context, object client.Object) []reconcile.Request {
	owner := metav1.GetControllerOf(object)
	if owner == nil || owner.Kind != trainer.TrainJobKind {
		return nil
	}
	return []reconcile.Request{requestFor(types.NamespacedName{Namespace: object.GetNamespace(), Name: owner.Name})}
}

// cachesOfWorkload maps a Workload to the DataCaches that its TrainJob may use.
func cachesOfWorkload(reader client.Reader) handler.MapFunc {
	caches := cachesOfJob(reader)
	return func(ctx context.Context, object client.Object) []reconcile.Request {
		for _, request := range jobOfWorkload(ctx, object) {
			job := &trainer.TrainJob{}
			if err := reader.Get(ctx, request.NamespacedName, job); err == nil { // otherwise it is gone
				return caches(ctx, job)
			}
		}
		return nil
	}
}
