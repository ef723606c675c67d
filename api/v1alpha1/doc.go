// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 defines the DataCache resource: which table to keep in memory, the pods that hold it, who may use it, and its
// status.
// +kubebuilder:object:generate=true
// +groupName=datacache.kubeflow.org
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of everything in this package.
var GroupVersion = schema.GroupVersion{Group: "datacache.kubeflow.org", Version: "v1alpha1"}

// AddToScheme registers DataCache and DataCacheList.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &DataCache{}, &DataCacheList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
