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

// MayUse tells whether TrainJobs of a namespace with these labels may use a DataCache: those of its own, and of those that it chooses.
// Labels are looked at only where NeedsLabels.
func MayUse(namespace string, labels map[string]string, cache *v1alpha1.DataCache) bool {
	if namespace == cache.Namespace {
		return true
	}
	switch access := cache.Spec.Access.Namespaces; access.From {
	case v1alpha1.AccessNames:
		return slices.Contains(access.Names, namespace)
	case v1alpha1.AccessSelector:
		selector, err := metav1.LabelSelectorAsSelector(access.Selector) // nil selects nothing
		return err == nil && selector.Matches(k8slabels.Set(labels))
	}
	return false
}

// NeedsLabels tells whether MayUse asks for the labels of the namespace.
func NeedsLabels(namespace string, cache *v1alpha1.DataCache) bool {
	return namespace != cache.Namespace && cache.Spec.Access.Namespaces.From == v1alpha1.AccessSelector
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

// CheckReference refuses a TrainJob of a namespace with these labels whose storageUri names a DataCache that there is not (nil) or that it
// may not use. Of another namespace it doesn't tell which of the two it is.
func CheckReference(namespace string, labels map[string]string, reference types.NamespacedName, cache *v1alpha1.DataCache) field.ErrorList {
	path := field.NewPath("spec", "initializer", "dataset", "storageUri")
	value := "datacache://" + reference.String()
	switch {
	case namespace != reference.Namespace && (cache == nil || !MayUse(namespace, labels, cache)): // in the same words: strangers must not learn which
		return field.ErrorList{field.Forbidden(path, fmt.Sprintf(
			"the DataCache %s is not for the namespace %s: if there is one, its owner must add %[2]s to spec.access.namespaces", reference, namespace))}
	case cache == nil:
		return field.ErrorList{field.Invalid(path, value,
			fmt.Sprintf("there is no DataCache %s in the namespace %s: 'kubectl get datacaches -n %[2]s' lists what there is", reference.Name, reference.Namespace))}
	}
	return nil
}
