// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"maps"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/controller/arrow"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// trust maintains the ConfigMap that the job's pods mount beside their tokens: the certificates of the authorities of the job's caches, by the
// folders in which the pods look for them. With a certificate a client never connects in plain text. A job whose caches have none for clients
// has no ConfigMap.
func (r *jobReconciler) trust(ctx context.Context, job *trainer.TrainJob, caches map[string]types.NamespacedName) error {
	want := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: wellknown.AuthoritiesName(cmp.Or(job.Annotations[wellknown.AnnotationPlacement], job.Name)), Namespace: job.Namespace,
		Labels:          map[string]string{wellknown.LabelManagedBy: wellknown.ManagedBy},
		OwnerReferences: []metav1.OwnerReference{jobReference(job, true)},
	}}
	have := &corev1.ConfigMap{}
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(want), have)
	if client.IgnoreNotFound(err) != nil {
		return r.Failed("get", want, err)
	}
	want.Data = map[string]string{}
	for folder, key := range caches {
		dc, err := r.find(ctx, key)
		if err != nil {
			return err
		}
		certificate := have.Data[folder] // of a cache that was deleted and may be made again
		if dc != nil {
			certificate = arrow.Trusted(dc)
		}
		if certificate != "" {
			want.Data[folder] = certificate
		}
	}
	if maps.Equal(want.Data, have.Data) {
		return nil
	}
	_, err = kube.Apply(ctx, r.Applier, want)
	return err
}
