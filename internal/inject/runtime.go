// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"strings"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// Runtime is a TrainingRuntime or a ClusterTrainingRuntime. Nothing here changes its Spec or its Labels.
type Runtime struct {
	Kind, Name string
	Labels     map[string]string
	Spec       *trainer.TrainingRuntimeSpec
}

// Cluster is the Runtime of a ClusterTrainingRuntime; both share their spec and labels.
func Cluster(r *trainer.ClusterTrainingRuntime) *Runtime {
	return &Runtime{Kind: clusterRuntime, Name: r.Name, Labels: r.Labels, Spec: &r.Spec}
}

// Namespaced is the Runtime of a TrainingRuntime; both share their spec and labels.
func Namespaced(r *trainer.TrainingRuntime) *Runtime {
	return &Runtime{Kind: "TrainingRuntime", Name: r.Name, Labels: r.Labels, Spec: &r.Spec}
}

// RuntimeRef is the runtime that a TrainJob names, with the API server's defaults, or DefaultRuntime where it names none: what
// Mutate wants to be given.
func RuntimeRef(job *trainer.TrainJob) trainer.RuntimeRef {
	ref := job.Spec.RuntimeRef
	if ref.Name == "" {
		ref.Name = DefaultRuntime
	}
	if ptr.Deref(ref.APIGroup, "") == "" {
		ref.APIGroup = new(trainerGroup)
	}
	if ptr.Deref(ref.Kind, "") == "" {
		ref.Kind = new(clusterRuntime)
	}
	return ref
}

// describe is a runtime in the form of AnnotationRuntime.
func describe(ref trainer.RuntimeRef) string {
	if *ref.Kind == clusterRuntime {
		return ref.Name
	}
	return *ref.Kind + "/" + ref.Name
}

// OriginalRuntime is the kind and name of the runtime that a TrainJob named before admission: AnnotationRuntime where that is set, else
// the one that it names.
func OriginalRuntime(job *trainer.TrainJob) (kind, name string) {
	ref := RuntimeRef(job)
	before := job.Annotations[AnnotationRuntime]
	if before == "" {
		return *ref.Kind, ref.Name
	}
	if kind, name, ok := strings.Cut(before, "/"); ok {
		return kind, name
	}
	return clusterRuntime, before
}

// StepEnv is the environment of a runtime's step dataset-initializer, the platform's defaults for Parse; nil where there is none.
func StepEnv(spec *trainer.TrainingRuntimeSpec) []corev1.EnvVar {
	for i := range spec.Template.Spec.ReplicatedJobs {
		if job := &spec.Template.Spec.ReplicatedJobs[i]; job.Name == StepName {
			if c := container(job, StepName); c != nil {
				return c.Env
			}
		}
	}
	return nil
}

// container finds a container of a job's pods by name, or gives nil.
func container(job *jobset.ReplicatedJob, name string) *corev1.Container {
	containers := job.Template.Spec.Template.Spec.Containers
	for i := range containers {
		if containers[i].Name == name {
			return &containers[i]
		}
	}
	return nil
}
