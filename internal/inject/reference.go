// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"fmt"
	"slices"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// MayUse tells whether TrainJobs of a namespace may use a DataCache: those of its own, and of those that it allows.
func MayUse(namespace string, cache *v1alpha1.DataCache) bool {
	allowed := cache.Spec.AllowNamespaces
	return namespace == cache.Namespace || slices.Contains(allowed, namespace) || slices.Contains(allowed, "*")
}

// CheckName refuses a TrainJob whose name is that of a DataCache that is neither its own nor the one that it asks for: its clients look for
// their cache by the TrainJob's name alone, and would find the other one. The cache is the DataCache of the TrainJob's name and namespace,
// nil if there is none.
func CheckName(job *trainer.TrainJob, asked *Request, cache *v1alpha1.DataCache) field.ErrorList {
	if cache == nil || asked.Reference != nil && *asked.Reference == (types.NamespacedName{Namespace: cache.Namespace, Name: cache.Name}) {
		return nil
	}
	if slices.ContainsFunc(cache.OwnerReferences, func(owner metav1.OwnerReference) bool {
		return owner.Kind == trainer.TrainJobKind && owner.Name == job.Name
	}) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), job.Name, fmt.Sprintf(
		"there is a DataCache of this name, and a TrainJob's clients find their cache by its name: name the TrainJob otherwise, or ask for that cache by %s%s",
		referenceScheme, cache.Name))}
}

// CheckReference refuses a TrainJob of a namespace whose storageUri names a DataCache that there is not (nil) or that it may not use.
func CheckReference(namespace string, reference types.NamespacedName, cache *v1alpha1.DataCache) field.ErrorList {
	path := field.NewPath("spec", "initializer", "dataset", "storageUri")
	value := "datacache://" + reference.String()
	switch {
	case cache == nil:
		return field.ErrorList{field.Invalid(path, value,
			fmt.Sprintf("there is no DataCache %s in the namespace %s: 'kubectl get datacaches -n %[2]s' lists what there is", reference.Name, reference.Namespace))}
	case !MayUse(namespace, cache):
		return field.ErrorList{field.Forbidden(path,
			fmt.Sprintf("the DataCache %s is not for the namespace %s: its owner must add it to spec.allowNamespaces", reference, namespace))}
	}
	return nil
}
