// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"maps"
	"slices"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// Runtime is a TrainingRuntime or a ClusterTrainingRuntime. This package never modifies its Spec or Labels.
type Runtime struct {
	Kind, Name string
	Labels     map[string]string
	Spec       *trainer.TrainingRuntimeSpec
}

// Cluster returns the Runtime of a ClusterTrainingRuntime; both share their spec and labels.
func Cluster(r *trainer.ClusterTrainingRuntime) *Runtime {
	return &Runtime{Kind: trainer.ClusterTrainingRuntimeKind, Name: r.Name, Labels: r.Labels, Spec: &r.Spec}
}

// Namespaced returns the Runtime of a TrainingRuntime; both share their spec and labels.
func Namespaced(r *trainer.TrainingRuntime) *Runtime {
	return &Runtime{Kind: trainer.TrainingRuntimeKind, Name: r.Name, Labels: r.Labels, Spec: &r.Spec}
}

// RuntimeRef completes a TrainJob's reference to its runtime by the API server's defaults; it is to wellknown.DefaultRuntime if it has no
// name.
func RuntimeRef(ref trainer.RuntimeRef) trainer.RuntimeRef {
	if ref.Name == "" {
		ref.Name = wellknown.DefaultRuntime
	}
	if ptr.Deref(ref.APIGroup, "") == "" {
		ref.APIGroup = new(trainer.GroupVersion.Group)
	}
	if ptr.Deref(ref.Kind, "") == "" {
		ref.Kind = new(trainer.ClusterTrainingRuntimeKind)
	}
	return ref
}

// HasGate reports whether a runtime's step dataset-initializer is our gate, so that TrainJobs can use the runtime directly.
func HasGate(labels map[string]string, spec *trainer.TrainingRuntimeSpec) bool {
	if labels[wellknown.LabelGate] != "true" {
		return false
	}
	return slices.ContainsFunc(spec.Template.Spec.ReplicatedJobs, func(job jobset.ReplicatedJob) bool {
		return job.Name == wellknown.StepName && Container(&job, wellknown.StepName) != nil
	})
}

// imageName is the variable with which a runtime's step sets the image of its caches.
const imageName = "CACHE_IMAGE"

// Step is the configuration for caches in a runtime's step dataset-initializer. The zero value configures nothing.
type Step struct {
	// Env are the platform's defaults for values that a TrainJob does not set.
	Env []corev1.EnvVar
	// Image of caches (CACHE_IMAGE), only set if the step is our gate: in another step the variable belongs to another program.
	Image string
	// NodeSelector and Tolerations of the step's pod also apply to caches of TrainJobs.
	NodeSelector map[string]string
	Tolerations  []corev1.Toleration
}

// StepOf returns the step of a runtime, which shares memory with it; the zero Step if it has none or rt is nil.
func StepOf(rt *Runtime) Step {
	if rt == nil {
		return Step{}
	}
	step := SpecStep(rt.Spec)
	at := slices.IndexFunc(step.Env, func(v corev1.EnvVar) bool { return v.Name == imageName })
	if at >= 0 && HasGate(rt.Labels, rt.Spec) {
		step.Image = step.Env[at].Value
	}
	return step
}

// Container names of a cache's pods, to which DataCache.spec.arrow refers.
const (
	headContainer = "head"
	nodeContainer = "node"
)

// template returns the step's settings for a cache's pods; nil if there are none.
func (s Step) template(container string) *v1alpha1.PodTemplate {
	if s.Image == "" && len(s.NodeSelector) == 0 && len(s.Tolerations) == 0 {
		return nil
	}
	pod := &corev1.PodSpec{NodeSelector: maps.Clone(s.NodeSelector), Tolerations: slices.Clone(s.Tolerations)}
	if s.Image != "" {
		pod.Containers = []corev1.Container{{Name: container, Image: s.Image}}
	}
	return &v1alpha1.PodTemplate{Spec: pod}
}

// SpecStep returns the step of a runtime by its spec alone: without the image.
func SpecStep(spec *trainer.TrainingRuntimeSpec) Step {
	for i := range spec.Template.Spec.ReplicatedJobs {
		job := &spec.Template.Spec.ReplicatedJobs[i]
		if job.Name != wellknown.StepName {
			continue
		}
		if c := Container(job, wellknown.StepName); c != nil {
			pod := &job.Template.Spec.Template.Spec
			return Step{Env: c.Env, NodeSelector: pod.NodeSelector, Tolerations: pod.Tolerations}
		}
	}
	return Step{}
}

// Container returns a container of a job's pods by name, or nil.
func Container(job *jobset.ReplicatedJob, name string) *corev1.Container {
	containers := job.Template.Spec.Template.Spec.Containers
	for i := range containers {
		if containers[i].Name == name {
			return &containers[i]
		}
	}
	return nil
}
