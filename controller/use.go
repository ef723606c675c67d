// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/controller/queue"
	"github.com/kubeflow/datacache/controller/workload"
	"github.com/kubeflow/datacache/internal/admit"
	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// Names of the informers' field indexes.
const (
	indexStep      = "step"      // pods of waiting steps by their TrainJob's name
	indexUses      = "uses"      // Services by the DataCache, <namespace>/<name>, that they record a job to use
	indexReference = "reference" // TrainJobs by the DataCaches, <namespace>/<name>, that their storageUri names
	indexRuntime   = "runtime"   // TrainJobs by the runtime, <kind>/<name>, that they name
)

func cacheOfService(object client.Object) []string {
	if name := object.GetAnnotations()[wellknown.AnnotationUses]; name != "" {
		return []string{name}
	}
	return nil
}

func referencesOf(object client.Object) []string {
	job, ok := object.(*trainer.TrainJob)
	if !ok {
		return nil
	}
	asked, _ := request.Read(job, job.Namespace).Parse(request.Step{}) // the job's own reconciliation reports errors
	if asked == nil {
		return nil
	}
	var keys []string
	for _, reference := range asked.References {
		keys = append(keys, reference.Key.String())
	}
	return keys
}

// servicesOf returns the names of the Services that may exist for a job, one for each DataCache that it uses.
func servicesOf(job *trainer.TrainJob) []string {
	names := []string{wellknown.ServiceName(job.Name)}
	if uses := request.Read(job, job.Namespace).Uses(); len(uses) > 1 {
		for _, use := range uses[1:] {
			names = append(names, use.Service)
		}
	}
	return names
}

// useService returns the Service, named name, by which a job's clients reach a shared cache: they know only TRAIN_JOB_NAME. It also records
// that the job uses the cache. For a cache of files, which has no address, it only records that.
func useService(job *trainer.TrainJob, name string, dc *v1alpha1.DataCache, clusterDomain string) *corev1.Service {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: job.Namespace,
			Labels:          map[string]string{wellknown.LabelManagedBy: wellknown.ManagedBy},
			Annotations:     map[string]string{wellknown.AnnotationUses: kube.Qualified(dc)},
			OwnerReferences: []metav1.OwnerReference{jobReference(job, true)},
		},
		Spec: corev1.ServiceSpec{
			Type:         corev1.ServiceTypeExternalName,
			ExternalName: fmt.Sprintf("%s.%s.svc.%s", wellknown.ServiceName(dc.Name), dc.Namespace, clusterDomain),
			Ports:        workload.ServicePorts(),
		},
	}
	if dc.Spec.Fluid != nil {
		service.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: corev1.ClusterIPNone}
	}
	return service
}

// jobReference returns an owner reference to the job. It does not block the job's deletion, which must work without this controller.
func jobReference(job *trainer.TrainJob, controller bool) metav1.OwnerReference {
	ref := metav1.OwnerReference{APIVersion: trainer.GroupVersion.String(), Kind: trainer.TrainJobKind, Name: job.Name, UID: job.UID}
	if controller {
		ref.Controller = new(true)
	}
	return ref
}

// findJob returns the TrainJob with the name and the UID, nil if there is none.
func findJob(ctx context.Context, reader client.Reader, key types.NamespacedName, uid types.UID) (*trainer.TrainJob, error) {
	job := &trainer.TrainJob{}
	err := reader.Get(ctx, key, job)
	if apierrors.IsNotFound(err) {
		return nil, nil // not found is not an error
	}
	if err != nil {
		return nil, fmt.Errorf("get TrainJob %s: %w", key, err)
	}
	if job.UID != uid {
		return nil, nil // another job with that name
	}
	return job, nil
}

// usersOf returns the TrainJobs that use the cache now, as <namespace>/<name>, sorted: those with a use Service that names the cache, and
// the one that has the cache's own name and therefore needs no such Service.
func usersOf(ctx context.Context, reader, live client.Reader, q *queue.Queues, dc *v1alpha1.DataCache) ([]string, error) {
	var users []string
	namesake := &trainer.TrainJob{}
	err := reader.Get(ctx, client.ObjectKeyFromObject(dc), namesake)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get TrainJob %s: %w", kube.Qualified(dc), err)
	}
	if err == nil && isNamesake(namesake, dc) {
		is, err := phaseIn(ctx, q, namesake)
		if err != nil {
			return nil, err
		}
		if is == active {
			users = append(users, kube.Qualified(namesake))
		}
	}
	var services corev1.ServiceList
	if err := reader.List(ctx, &services, client.MatchingFields{indexUses: kube.Qualified(dc)}); err != nil {
		return nil, fmt.Errorf("list Services that lead to DataCache %s: %w", kube.Qualified(dc), err)
	}
	for i := range services.Items {
		job, err := jobOfService(ctx, reader, &services.Items[i])
		if err != nil {
			return nil, err
		}
		is, err := phaseIn(ctx, q, job)
		if err != nil {
			return nil, err
		}
		if is != active {
			continue
		}
		labels, err := admit.NamespaceLabels(ctx, job.Namespace, dc, live)
		if err != nil {
			return nil, err
		}
		if request.MayUse(job.Namespace, labels, dc) {
			users = append(users, kube.Qualified(job))
		}
	}
	slices.Sort(users)
	return slices.Compact(users), nil
}

// isNamesake reports whether the job that has a cache's name uses the cache while it runs.
func isNamesake(job *trainer.TrainJob, dc *v1alpha1.DataCache) bool {
	if isElsewhere(job) {
		return false
	}
	if owner := kube.JobOf(dc); owner != nil {
		return owner.UID == job.UID
	}
	return slices.Contains(referencesOf(job), kube.Qualified(dc))
}

// jobOfService returns the TrainJob that the Service was made for, nil if it does not exist any more.
func jobOfService(ctx context.Context, reader client.Reader, service *corev1.Service) (*trainer.TrainJob, error) {
	owner := metav1.GetControllerOf(service)
	if owner == nil || owner.Kind != trainer.TrainJobKind {
		return nil, nil // somebody else's Service: its annotation records no use
	}
	return findJob(ctx, reader, types.NamespacedName{Namespace: service.Namespace, Name: owner.Name}, owner.UID)
}
