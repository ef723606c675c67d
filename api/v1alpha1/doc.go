// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the DataCache resource: which table to keep in memory, how big, for whom, and how it is doing.
//
// +kubebuilder:object:generate=true
// +groupName=datacache.kubeflow.org
package v1alpha1

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/scheme"
)

// GroupVersion is the group and version of everything in this package.
var GroupVersion = schema.GroupVersion{Group: "datacache.kubeflow.org", Version: "v1alpha1"}

var builder = &scheme.Builder{GroupVersion: GroupVersion}

// AddToScheme registers DataCache and DataCacheList.
var AddToScheme = builder.AddToScheme

func init() {
	builder.Register(&DataCache{}, &DataCacheList{})
}
