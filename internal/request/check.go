// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"fmt"
	"slices"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
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

// CheckName rejects a TrainJob with the name of a DataCache that is neither its own nor the first that it requests: its clients look up
// their cache by the TrainJob's name and would find the wrong one. cache is the DataCache with the TrainJob's name and namespace, nil
// if there is none.
func CheckName(job *Job, asked *Request, cache *v1alpha1.DataCache) field.ErrorList {
	if cache == nil || asked.Cache.Fluid != nil && asked.Name == cache.Name {
		return nil
	}
	how := "ask for that cache by " + referenceScheme + cache.Name
	if len(asked.References) > 0 {
		if asked.References[0].Key == (types.NamespacedName{Namespace: cache.Namespace, Name: cache.Name}) {
			return nil
		}
		how = "name that cache first in its storageUri"
	}
	if slices.ContainsFunc(cache.OwnerReferences, func(owner metav1.OwnerReference) bool {
		return owner.Kind == trainer.TrainJobKind && owner.Name == job.Name
	}) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), job.Name, fmt.Sprintf(
		"there is a DataCache of this name, and a TrainJob's clients find their cache by its name: name the TrainJob otherwise, or %s", how))}
}

// CheckReference rejects a TrainJob whose storageUri names a DataCache that does not exist (nil), that its namespace may not use, or that
// caches files and is not named alone. For another namespace the error does not tell which of the first two it is.
func CheckReference(namespace string, labels map[string]string, key types.NamespacedName, alone bool, cache *v1alpha1.DataCache) field.ErrorList {
	path := field.NewPath("spec", "initializer", "dataset", "storageUri")
	value := referenceScheme + key.String()
	switch {
	case namespace != key.Namespace && (cache == nil || !MayUse(namespace, labels, cache)): // the same message for both
		return field.ErrorList{field.Forbidden(path, fmt.Sprintf(
			"the DataCache %s is not for the namespace %s: if there is one, its owner must add %[2]s to spec.access.namespaces", key, namespace))}
	case namespace != key.Namespace && cache.Spec.Fluid != nil:
		return field.ErrorList{field.Forbidden(path, fmt.Sprintf(
			"the DataCache %s caches files, which can be mounted in its own namespace only: make one in the namespace %s", key, namespace))}
	case cache == nil:
		return field.ErrorList{field.Invalid(path, value,
			fmt.Sprintf("there is no DataCache %s in the namespace %s: 'kubectl get datacaches -n %[2]s' lists what there is", key.Name, key.Namespace))}
	case !alone && cache.Spec.Fluid != nil:
		return field.ErrorList{field.Invalid(path, value, fmt.Sprintf(
			"the DataCache %s caches files, which can only be named alone: leave it out, or name nothing else", key))}
	}
	return nil
}

// CheckDataset rejects a TrainJob that names a dataset of a cache into which none can be put.
func CheckDataset(r Reference, cache *v1alpha1.DataCache) field.ErrorList {
	if r.Dataset == "" || cache == nil || cache.Spec.Arrow != nil && cache.Spec.Arrow.MayPut() {
		return nil
	}
	return field.ErrorList{field.Invalid(uriPath, referenceScheme+r.Name, fmt.Sprintf(
		"the DataCache %s takes no datasets from clients: its owner sets spec.arrow.puts.enabled, or name its table by %s%[1]s", r.Key, referenceScheme))}
}

// CheckCache rejects a TrainJob whose request can't be served by the DataCache of the name that it asks for, which may be nil.
func CheckCache(asked *Request, cache *v1alpha1.DataCache) field.ErrorList {
	if asked.Cache.Fluid == nil || cache == nil {
		return nil
	}
	difference := FluidDifference(cache.Spec.Fluid, asked.Cache.Fluid)
	if difference == "" {
		return nil
	}
	return field.ErrorList{field.Invalid(envPath, "CACHE_NAME="+asked.Name, fmt.Sprintf(
		"there is a DataCache of this name whose %s: give CACHE_NAME another name, or ask for that one by %s%s", difference, referenceScheme, asked.Name))}
}

// Files returns the files that a valid request asks for, with the field that asks for them and its value; nil for a table. named is the
// DataCache that exists by the name that the TrainJob gives, or nil.
func (j *Job) Files(asked *Request, named *v1alpha1.DataCache) (at *field.Path, value string, files *v1alpha1.FluidCache) {
	if files = asked.Cache.Fluid; files == nil && named != nil {
		files = named.Spec.Fluid
	}
	return uriPath, j.uri, files
}

// MountField is the field that says where files are mounted.
func (j *Job) MountField() *field.Path {
	if at := slices.IndexFunc(j.env, func(v corev1.EnvVar) bool { return v.Name == "MOUNT_PATH" && v.Value != "" }); at >= 0 {
		return envPath.Index(at).Child("value")
	}
	return uriPath
}
