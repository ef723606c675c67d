// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/internal/gang"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// TestGangIsBuiltWithoutTheStep checks what Trainer builds of a suspended TrainJob, whose PodGroup the controller doesn't change.
func TestGangIsBuiltWithoutTheStep(t *testing.T) {
	t.Parallel()
	namespace := cluster.Namespace(t)
	job := cacheJob(t, namespace, "2")
	stock := &trainer.ClusterTrainingRuntime{}
	found(t, stock, "", "torch-distributed")
	gangs := &trainer.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gang", Labels: stock.Labels}, Spec: stock.Spec}
	gangs.Spec.PodGroupPolicy = &trainer.PodGroupPolicy{PodGroupPolicySource: trainer.PodGroupPolicySource{
		Coscheduling: &trainer.CoschedulingPodGroupPolicySource{ScheduleTimeoutSeconds: new(int32(5))},
	}}
	cluster.Create(t, gangs)
	found(t, &trainer.TrainingRuntime{}, namespace, wellknown.TwinName("gang"))
	job.Spec.RuntimeRef = trainer.RuntimeRef{Kind: new(trainer.TrainingRuntimeKind), Name: "gang"}
	job.Spec.Trainer.NumNodes, job.Spec.Suspend = new(int32(3)), new(true)
	cluster.Create(t, job)
	group := &unstructured.Unstructured{}
	group.SetGroupVersionKind(gang.Kinds[0])
	found(t, group, namespace, job.Name)
	if members, _, err := unstructured.NestedInt64(group.Object, "spec", "minMember"); err != nil || members != 3 {
		t.Errorf("the PodGroup requires %d pods (%v), want 3", members, err)
	}
	set := &jobset.JobSet{}
	found(t, set, namespace, job.Name)
	for _, step := range set.Spec.ReplicatedJobs {
		if name, member := step.Template.Spec.Template.Labels[gang.Label]; member != (step.Name == wellknown.NodeName) {
			t.Errorf("the pods of %s are in the group %q", step.Name, name)
		}
	}
}
