// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"maps"
	"slices"
	"strings"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// Names defined by Trainer (kubeflow/trainer v2.3.0 pkg/constants/constants.go and pkg/runtime/framework/plugins/jobset/constants).
const (
	modelStep      = "model-initializer"
	ancestorLabel  = "trainer.kubeflow.org/trainjob-ancestor-step"
	stepVolume     = "initializer"
	trainerGroup   = "trainer.kubeflow.org"
	clusterRuntime = "ClusterTrainingRuntime"
)

// Runtime is a TrainingRuntime or a ClusterTrainingRuntime. This package never modifies its Spec or Labels.
type Runtime struct {
	Kind, Name string
	Labels     map[string]string
	Spec       *trainer.TrainingRuntimeSpec
}

// Cluster returns the Runtime of a ClusterTrainingRuntime; both share their spec and labels.
func Cluster(r *trainer.ClusterTrainingRuntime) *Runtime {
	return &Runtime{Kind: clusterRuntime, Name: r.Name, Labels: r.Labels, Spec: &r.Spec}
}

// Namespaced returns the Runtime of a TrainingRuntime; both share their spec and labels.
func Namespaced(r *trainer.TrainingRuntime) *Runtime {
	return &Runtime{Kind: "TrainingRuntime", Name: r.Name, Labels: r.Labels, Spec: &r.Spec}
}

// RuntimeRef returns the runtime that a TrainJob names, with the API server's defaults, or DefaultRuntime if it names none. This is
// the runtime that Mutate expects.
func RuntimeRef(job *trainer.TrainJob) trainer.RuntimeRef {
	ref := job.Spec.RuntimeRef
	if ref.Name == "" {
		ref.Name = wellknown.DefaultRuntime
	}
	if ptr.Deref(ref.APIGroup, "") == "" {
		ref.APIGroup = new(trainerGroup)
	}
	if ptr.Deref(ref.Kind, "") == "" {
		ref.Kind = new(clusterRuntime)
	}
	return ref
}

// describe formats a reference to a runtime for AnnotationRuntime.
func describe(ref trainer.RuntimeRef) string {
	if *ref.Kind == clusterRuntime {
		return ref.Name
	}
	return *ref.Kind + "/" + ref.Name
}

// OriginalRuntime is the kind and name of the runtime that a TrainJob named before admission: AnnotationRuntime if that is set,
// otherwise the one that it names.
func OriginalRuntime(job *trainer.TrainJob) (kind, name string) {
	ref := RuntimeRef(job)
	before := job.Annotations[wellknown.AnnotationRuntime]
	if before == "" {
		return *ref.Kind, ref.Name
	}
	if kind, name, ok := strings.Cut(before, "/"); ok {
		return kind, name
	}
	return clusterRuntime, before
}

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
	step := stepOf(rt.Spec)
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

func stepOf(spec *trainer.TrainingRuntimeSpec) Step {
	for i := range spec.Template.Spec.ReplicatedJobs {
		job := &spec.Template.Spec.ReplicatedJobs[i]
		if job.Name != wellknown.StepName {
			continue
		}
		if c := container(job, wellknown.StepName); c != nil {
			pod := &job.Template.Spec.Template.Spec
			return Step{Env: c.Env, NodeSelector: pod.NodeSelector, Tolerations: pod.Tolerations}
		}
	}
	return Step{}
}

// container returns a container of a job's pods by name, or nil.
func container(job *jobset.ReplicatedJob, name string) *corev1.Container {
	containers := job.Template.Spec.Template.Spec.Containers
	for i := range containers {
		if containers[i].Name == name {
			return &containers[i]
		}
	}
	return nil
}
