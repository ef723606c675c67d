// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/arrow"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// phaseChanged passes events that change a TrainJob's phase, and not those that only change the counts of its pods.
var phaseChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*trainer.TrainJob)
		after, also := e.ObjectNew.(*trainer.TrainJob)
		return !ok || !also || phaseOf(before) != phaseOf(after)
	},
}

// progressChanged passes events that change a TrainJob's phase or the states of its Jobs.
var progressChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*trainer.TrainJob)
		after, also := e.ObjectNew.(*trainer.TrainJob)
		return !ok || !also || phaseOf(before) != phaseOf(after) || jobsOf(before) != jobsOf(after)
	},
}

// stateChanged passes events that change a DataCache's state.
var stateChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1alpha1.DataCache)
		after, also := e.ObjectNew.(*v1alpha1.DataCache)
		return !ok || !also || before.Status.State != after.Status.State
	},
}

// trustChanged passes events that change the authority by which clients of a DataCache check its servers.
var trustChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1alpha1.DataCache)
		after, also := e.ObjectNew.(*v1alpha1.DataCache)
		return !ok || !also || arrow.Trusted(before) != arrow.Trusted(after)
	},
}

var onlyDeleted = predicate.Funcs{
	CreateFunc:  func(event.CreateEvent) bool { return false },
	UpdateFunc:  func(event.UpdateEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

func requestFor(key types.NamespacedName) reconcile.Request {
	return reconcile.Request{NamespacedName: key}
}

// usedCache maps a job's Service to the DataCache that it points to.
func usedCache(_ context.Context, service client.Object) []reconcile.Request {
	name := service.GetAnnotations()[wellknown.AnnotationUses]
	if name == "" {
		return nil
	}
	return []reconcile.Request{requestFor(kube.KeyOf(name))}
}

// cachesOfJob maps a job to the DataCache with its name and those that its Services point to.
func cachesOfJob(reader client.Reader) handler.MapFunc {
	return func(ctx context.Context, object client.Object) []reconcile.Request {
		job, ok := object.(*trainer.TrainJob)
		if !ok || isElsewhere(job) {
			return nil
		}
		key := client.ObjectKeyFromObject(job)
		requests := []reconcile.Request{requestFor(key)}
		for _, name := range servicesOf(job) {
			service := &corev1.Service{}
			if err := reader.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: name}, service); err == nil { // otherwise it uses none there
				requests = append(requests, usedCache(ctx, service)...)
			}
		}
		return requests
	}
}

// jobsOfCache maps a DataCache to the TrainJobs that depend on it: the one with its name, its users, and those that wait for it.
func jobsOfCache(reader client.Reader) handler.MapFunc {
	return func(ctx context.Context, dc client.Object) []reconcile.Request {
		requests := []reconcile.Request{requestFor(client.ObjectKeyFromObject(dc))}
		var services corev1.ServiceList
		if err := reader.List(ctx, &services, client.MatchingFields{indexUses: kube.Qualified(dc)}); err != nil {
			log.FromContext(ctx).Error(err, "list the users of a DataCache", "datacache", kube.Qualified(dc))
		}
		for i := range services.Items {
			if owner := metav1.GetControllerOf(&services.Items[i]); owner != nil && owner.Kind == trainer.TrainJobKind {
				requests = append(requests, requestFor(types.NamespacedName{Namespace: services.Items[i].Namespace, Name: owner.Name}))
			}
		}
		var jobs trainer.TrainJobList
		if err := reader.List(ctx, &jobs, client.MatchingFields{indexReference: kube.Qualified(dc)}); err != nil {
			log.FromContext(ctx).Error(err, "list the TrainJobs that name a DataCache", "datacache", kube.Qualified(dc))
		}
		for i := range jobs.Items {
			requests = append(requests, requestFor(client.ObjectKeyFromObject(&jobs.Items[i])))
		}
		return requests
	}
}

// sourceRequests maps a runtime to the sources whose twins may be affected: itself, and the runtime of which it has the twin's name.
func sourceRequests(_ context.Context, runtime client.Object) []reconcile.Request {
	key := client.ObjectKeyFromObject(runtime)
	requests := []reconcile.Request{requestFor(key)}
	if source, ok := wellknown.SourceName(key.Name); ok {
		requests = append(requests, requestFor(types.NamespacedName{Namespace: key.Namespace, Name: source}))
	}
	return requests
}

// sourceOfJob maps a TrainJob to the source of the twin that it named, which can now be deleted if its source is gone.
func (r *twinReconciler) sourceOfJob(_ context.Context, object client.Object) []reconcile.Request {
	job, ok := object.(*trainer.TrainJob)
	if !ok {
		return nil
	}
	ref := request.RuntimeRef(job.Spec.RuntimeRef)
	source, ok := wellknown.SourceName(ref.Name)
	if !ok || *ref.Kind != r.kind {
		return nil
	}
	key := types.NamespacedName{Name: source}
	if r.kind == trainer.TrainingRuntimeKind {
		key.Namespace = job.Namespace
	}
	return []reconcile.Request{requestFor(key)}
}
