// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gang determines which pods of a TrainJob with a cache a gang scheduler starts together: those that train.
//
// Trainer v2.3.0 counts the pods of every step, and gives all of them the name of the group. But the training pods don't exist until the
// step that waits for the cache is complete, so a scheduler that starts all or none would start none. So initializers leave the group, and
// the group requires only its remaining members. All functions are pure.
package gang

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/internal/wellknown"
)

// Where a pod has the name of its group: Coscheduling of scheduler-plugins reads the label, Volcano the annotation.
const (
	Label      = "scheduling.x-k8s.io/pod-group"
	Annotation = "scheduling.k8s.io/group-name"
)

// Kinds are the groups of the two schedulers. Both have spec.minMember and spec.minResources; Trainer names them like the TrainJob.
var Kinds = []schema.GroupVersionKind{
	{Group: "scheduling.x-k8s.io", Version: "v1alpha1", Kind: "PodGroup"},
	{Group: "scheduling.volcano.sh", Version: "v1beta1", Kind: "PodGroup"},
}

// Trainer's names (kubeflow/trainer v2.3.0 pkg/constants/constants.go).
const (
	ancestorLabel = "trainer.kubeflow.org/trainjob-ancestor-step"
	modelStep     = "model-initializer"
)

// Waits reports whether a JobSet has our step, which waits for a cache.
func Waits(set *jobset.JobSetSpec) bool {
	return slices.ContainsFunc(set.ReplicatedJobs, func(job jobset.ReplicatedJob) bool {
		return job.Name == wellknown.StepName && job.Template.Spec.Template.Labels[wellknown.LabelManagedBy] == wellknown.ManagedBy
	})
}

// IsMember reports whether the pods of a job start together: those of initializers have ended when the others are created.
func IsMember(job *jobset.ReplicatedJob) bool {
	for _, name := range []string{job.Name, job.Template.Labels[ancestorLabel]} {
		if name == wellknown.StepName || name == modelStep {
			return false
		}
	}
	return true
}

// Dismiss removes the group's name from the pods of initializers, if the JobSet has our step.
func Dismiss(set *jobset.JobSetSpec) {
	if !Waits(set) {
		return
	}
	for i := range set.ReplicatedJobs {
		if job := &set.ReplicatedJobs[i]; !IsMember(job) {
			delete(job.Template.Spec.Template.Labels, Label)
			delete(job.Template.Spec.Template.Annotations, Annotation)
		}
	}
}

// Demand is what a group requires before any of its pods starts.
type Demand struct {
	Members   int32
	Resources corev1.ResourceList
}

// DemandOf returns what the members of a JobSet's group require: their number, and the sum of their requests.
func DemandOf(set *jobset.JobSetSpec) Demand {
	demand := Demand{Resources: corev1.ResourceList{}}
	for i := range set.ReplicatedJobs {
		job := &set.ReplicatedJobs[i]
		if !IsMember(job) {
			continue
		}
		pods := max(job.Replicas, 1) * max(ptr.Deref(job.Template.Spec.Parallelism, 1), 1)
		demand.Members += pods
		for name, each := range resource.PodRequests(&corev1.Pod{Spec: job.Template.Spec.Template.Spec}, resource.PodResourcesOptions{}) {
			each.Mul(int64(pods))
			sum := demand.Resources[name]
			sum.Add(each)
			demand.Resources[name] = sum
		}
	}
	return demand
}
