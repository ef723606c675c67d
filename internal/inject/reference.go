// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"fmt"
	"slices"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// MayUse reports whether TrainJobs of a namespace with the labels may use a DataCache: those of its own namespace, and those of the
// namespaces that its spec.access allows. Labels are only needed if NeedsLabels is true.
func MayUse(namespace string, labels map[string]string, cache *v1alpha1.DataCache) bool {
	if namespace == cache.Namespace {
		return true
	}
	switch access := cache.Spec.Access.Namespaces; access.From {
	case v1alpha1.AccessNames:
		return slices.Contains(access.Names, namespace)
	case v1alpha1.AccessSelector:
		selector, err := metav1.LabelSelectorAsSelector(access.Selector) // nil matches nothing
		return err == nil && selector.Matches(k8slabels.Set(labels))
	}
	return false
}

// NeedsLabels reports whether MayUse needs the labels of the namespace.
func NeedsLabels(namespace string, cache *v1alpha1.DataCache) bool {
	return namespace != cache.Namespace && cache.Spec.Access.Namespaces.From == v1alpha1.AccessSelector
}

// CheckName rejects a TrainJob with the name of a DataCache that is neither its own nor the one that it requests: its clients look up
// their cache by the TrainJob's name and would find the wrong one. cache is the DataCache with the TrainJob's name and namespace, nil
// if there is none.
func CheckName(job *trainer.TrainJob, asked *Request, cache *v1alpha1.DataCache) field.ErrorList {
	if cache == nil || asked.Cache.Fluid != nil && asked.Name == cache.Name || asked.Reference != nil && *asked.Reference == (types.NamespacedName{Namespace: cache.Namespace, Name: cache.Name}) {
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

// CheckReference rejects a TrainJob whose storageUri names a DataCache that does not exist (nil) or that its namespace may not use.
// For another namespace the error does not tell which of the two it is.
func CheckReference(namespace string, labels map[string]string, reference types.NamespacedName, cache *v1alpha1.DataCache) field.ErrorList {
	path := field.NewPath("spec", "initializer", "dataset", "storageUri")
	value := "datacache://" + reference.String()
	switch {
	case namespace != reference.Namespace && (cache == nil || !MayUse(namespace, labels, cache)): // the same message for both
		return field.ErrorList{field.Forbidden(path, fmt.Sprintf(
			"the DataCache %s is not for the namespace %s: if there is one, its owner must add %[2]s to spec.access.namespaces", reference, namespace))}
	case namespace != reference.Namespace && cache.Spec.Fluid != nil:
		return field.ErrorList{field.Forbidden(path, fmt.Sprintf(
			"the DataCache %s caches files, which can be mounted in its own namespace only: make one in the namespace %s", reference, namespace))}
	case cache == nil:
		return field.ErrorList{field.Invalid(path, value,
			fmt.Sprintf("there is no DataCache %s in the namespace %s: 'kubectl get datacaches -n %[2]s' lists what there is", reference.Name, reference.Namespace))}
	}
	return nil
}
