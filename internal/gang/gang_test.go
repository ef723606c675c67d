// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/internal/wellknown"
)

// jobOf returns a job as Trainer writes it for a gang.
func jobOf(name, ancestor string, pods int32, cpu string) jobset.ReplicatedJob {
	job := jobset.ReplicatedJob{Name: name, Replicas: 1}
	if ancestor != "" {
		job.Template.Labels = map[string]string{ancestorLabel: ancestor}
	}
	job.Template.Spec.Parallelism = &pods
	pod := &job.Template.Spec.Template
	pod.Labels, pod.Annotations = map[string]string{Label: "train", "app": "x"}, map[string]string{Annotation: "train"}
	pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}
	return job
}

func TestDismiss(t *testing.T) {
	t.Parallel()
	ours := jobOf(wellknown.StepName, wellknown.StepName, 1, "100m")
	ours.Template.Spec.Template.Labels[wellknown.LabelManagedBy] = wellknown.ManagedBy
	weights, launcher, node := jobOf("weights", "model-initializer", 1, "1"), jobOf("launcher", "", 1, "1"), jobOf("node", "trainer", 4, "2500m")
	tests := map[string]struct {
		jobs    []jobset.ReplicatedJob
		members []string // after Dismiss
		demand  Demand
	}{
		"our step":            {[]jobset.ReplicatedJob{ours, weights, launcher, node}, []string{"launcher", "node"}, demand(5, "11")},
		"an initializer only": {[]jobset.ReplicatedJob{weights, node}, []string{"weights", "node"}, demand(4, "10")},
		"no step":             {[]jobset.ReplicatedJob{node}, []string{"node"}, demand(4, "10")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set := (&jobset.JobSetSpec{ReplicatedJobs: tt.jobs}).DeepCopy()
			Dismiss(set)
			var members []string
			for _, job := range set.ReplicatedJobs {
				pod := &job.Template.Spec.Template
				if pod.Labels["app"] != "x" {
					t.Errorf("%s has lost a label", job.Name)
				}
				if (pod.Labels[Label] == "") != (pod.Annotations[Annotation] == "") {
					t.Errorf("%s is in the gang of one scheduler", job.Name)
				}
				if pod.Labels[Label] != "" {
					members = append(members, job.Name)
				}
			}
			if diff := cmp.Diff(tt.members, members); diff != "" {
				t.Errorf("members (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.demand, DemandOf(set)); diff != "" {
				t.Errorf("demand (-want +got):\n%s", diff)
			}
		})
	}
}

func demand(members int32, cpu string) Demand {
	return Demand{Members: members, Resources: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}
}
