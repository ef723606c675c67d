// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import corev1 "k8s.io/api/core/v1"

// Derive describes a Job whose pods put a dataset into the cache, mostly by kubeflow_datacache.derive, which makes it of the cache's rows. It runs
// when the cache is Ready, and again when its description changes, the cache's pods are started anew, the dataset's rows are lost, or the
// annotation datacache.kubeflow.org/retry changes. The condition Derived says how far it is.
type Derive struct {
	// dataset is the name of the dataset that the command puts. TrainJobs read it as datacache://<namespace>/<name>/<dataset>, and wait for it.
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`
	Dataset string `json:"dataset"`

	// image has Python with kubeflow_datacache, and what the command needs.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Image string `json:"image"`

	// command is run in each pod, which has the address of the cache, its CA and a token, so that DataCache.from_env() is the cache. Unset: the
	// image's own.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Command []string `json:"command,omitempty"`

	// env are more variables of the command.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Env []corev1.EnvVar `json:"env,omitempty"`

	// workers is the number of pods that run at once. derive gives each of them its share of the parts.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Workers int32 `json:"workers,omitempty"`

	// resources of each pod. Unset: none are requested.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
}

const (
	// ConditionDerived is True when the dataset of spec.arrow.derive is there. While it is False, its reason is that of a pod that can't run, or one
	// of these. Caches without derive don't have it.
	ConditionDerived = "Derived"
	// ReasonDerived says that the step has ended, and the dataset can be read.
	ReasonDerived = "Derived"
	// ReasonDeriving says that the step goes on.
	ReasonDeriving = "Deriving"
	// ReasonDeriveFailed says that the step failed, or ended without the dataset. It is not tried again by itself.
	ReasonDeriveFailed = "DeriveFailed"
)
