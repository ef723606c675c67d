// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cachetest has DataCaches for tests of what the controller makes of them.
package cachetest

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/kube"
)

// Minimal returns a DataCache as the API server stores it when only required fields are given.
func Minimal() *v1alpha1.DataCache {
	return &v1alpha1.DataCache{
		ObjectMeta: metav1.ObjectMeta{Name: "reviews", Namespace: "team-a", UID: "0a1b2c3d-1111-2222-3333-444455556666", Generation: 1},
		Spec: v1alpha1.DataCacheSpec{Arrow: &v1alpha1.ArrowCache{
			MetadataLocation: new("s3://lake/reviews/metadata/00003.metadata.json"), Table: "demo.reviews", DataNodes: 2, Replicas: 1,
		}},
	}
}

// Everything returns a DataCache with every field set.
func Everything() *v1alpha1.DataCache {
	dc := Minimal()
	dc.Labels = map[string]string{kube.LabelQueue: "gpu-queue", "team": "not copied"}
	dc.Spec.Access.Namespaces = v1alpha1.NamespaceAccess{From: v1alpha1.AccessNames, Names: []string{"team-c", "team-b"}}
	arrow := dc.Spec.Arrow
	arrow.MetadataLocation = nil
	arrow.Catalog = &v1alpha1.Catalog{
		URI: "https://catalog.example.com", Warehouse: new("main"), Credentials: &v1alpha1.Credentials{SecretRef: corev1.LocalObjectReference{Name: "catalog-keys"}},
	}
	arrow.Table = "demo.eu.reviews"
	arrow.Snapshot = &v1alpha1.Snapshot{Ref: new("audit")}
	arrow.Columns = []string{"content", "label"}
	arrow.Filter = new("price = '$$5' AND note = '$(HOME)'")
	arrow.DataNodes, arrow.Replicas = 4, 3
	arrow.Head = v1alpha1.PodSettings{
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("4Gi")}},
		Template:  &v1alpha1.PodTemplate{Spec: &corev1.PodSpec{PriorityClassName: "high"}},
	}
	arrow.DataNode = v1alpha1.PodSettings{
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("64Gi")},
		},
		Template: &v1alpha1.PodTemplate{Spec: &corev1.PodSpec{
			NodeSelector: map[string]string{"pool": "memory"},
			Tolerations:  []corev1.Toleration{{Key: "memory", Operator: corev1.TolerationOpExists}},
			Affinity:     &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}},
		}},
	}
	arrow.Spill = &v1alpha1.Spill{Limit: resource.MustParse("200Gi"), Ephemeral: &v1alpha1.SpillClaim{StorageClassName: new("local-nvme")}}
	arrow.Puts = &v1alpha1.Puts{}
	arrow.ServiceAccount.Annotations = map[string]string{"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/reader"}
	dc.Spec.Credentials = &v1alpha1.Credentials{SecretRef: corev1.LocalObjectReference{Name: "s3-keys"}}
	arrow.Env = []v1alpha1.StoreVariable{{Name: "AWS_REGION", Value: "eu-central-1"}}
	arrow.ObjectCache = &v1alpha1.ObjectCache{Bucket: "tables"}
	arrow.Readiness = &v1alpha1.Readiness{InitialDelaySeconds: 20, PeriodSeconds: 10, TimeoutSeconds: 7, FailureThreshold: 9}
	return dc
}
