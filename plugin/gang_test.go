// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	batchapply "k8s.io/client-go/applyconfigurations/batch/v1"
	coreapply "k8s.io/client-go/applyconfigurations/core/v1"
	jobsetapply "sigs.k8s.io/jobset/client-go/applyconfiguration/jobset/v1alpha2"
	coscheduling "sigs.k8s.io/scheduler-plugins/pkg/generated/applyconfiguration/scheduling/v1alpha1"
	volcano "volcano.sh/apis/pkg/client/applyconfiguration/scheduling/v1beta1"

	"github.com/kubeflow/datacache/internal/gang"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// TestDismiss edits a JobSet and PodGroups as Trainer builds them for one training pod: with every pod in the gang.
func TestDismiss(t *testing.T) {
	t.Parallel()
	step := func(name, cpu string) *jobsetapply.ReplicatedJobApplyConfiguration {
		requests := coreapply.ResourceRequirements().WithRequests(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)})
		pod := coreapply.PodTemplateSpec().
			WithLabels(map[string]string{gang.Label: "train", wellknown.LabelManagedBy: wellknown.ManagedBy}).
			WithAnnotations(map[string]string{gang.Annotation: "train"}).
			WithSpec(coreapply.PodSpec().WithContainers(coreapply.Container().WithName(name).WithResources(requests)))
		return jobsetapply.ReplicatedJob().WithName(name).WithReplicas(1).
			WithTemplate(batchapply.JobTemplateSpec().WithSpec(batchapply.JobSpec().WithParallelism(1).WithTemplate(pod)))
	}
	all := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2100m")}
	one := coscheduling.PodGroup("train", "team").WithSpec(coscheduling.PodGroupSpec().WithMinMember(2).WithMinResources(all))
	two := volcano.PodGroup("train", "team").WithSpec(volcano.PodGroupSpec().WithMinMember(2).WithMinResources(all))
	set := jobsetapply.JobSet("train", "team").WithSpec(jobsetapply.JobSetSpec().WithReplicatedJobs(step(wellknown.StepName, "100m"), step(wellknown.NodeName, "2")))
	if err := dismiss([]apiruntime.ApplyConfiguration{one, set, two}); err != nil {
		t.Fatal(err)
	}
	for _, job := range set.Spec.ReplicatedJobs {
		pod := job.Template.Spec.Template
		if trains := *job.Name == wellknown.NodeName; (pod.Labels[gang.Label] != "") != trains || (pod.Annotations[gang.Annotation] != "") != trains {
			t.Errorf("%s has labels %v and annotations %v", *job.Name, pod.Labels, pod.Annotations)
		}
	}
	for scheduler, got := range map[string]struct {
		members   int32
		resources corev1.ResourceList
	}{
		"coscheduling": {*one.Spec.MinMember, *one.Spec.MinResources},
		"volcano":      {*two.Spec.MinMember, *two.Spec.MinResources},
	} {
		if cpu := got.resources[corev1.ResourceCPU]; got.members != 1 || cpu.String() != "2" {
			t.Errorf("the PodGroup of %s requires %d pods and cpu %s, want 1 and 2", scheduler, got.members, cpu.String())
		}
	}
}
