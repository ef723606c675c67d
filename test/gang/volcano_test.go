// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/internal/gang"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// volcano checks what Volcano's scheduler reads, which doesn't run here: its gang plugin starts a PodGroup when minMember pods with the
// annotation exist and fit, and its action enqueue admits one for whose minResources there is room.
func volcano(t *testing.T) {
	own := newTeam(t, "volcano", nodes, trainer.PodGroupPolicySource{Volcano: &trainer.VolcanoPodGroupPolicySource{}})
	own.loaded.Store(true)
	job := own.job("train")
	job.Spec.Suspend = new(true)
	cluster.Create(t, job)
	own.requires(t, gang.Kinds[1], "train", nodes+1, "2100m")
	kubetest.Eventually(t, "resume", func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
			return err
		}
		job.Spec.Suspend = new(false)
		return cluster.Client.Update(t.Context(), job)
	})
	own.requires(t, gang.Kinds[1], "train", nodes, "2")
	own.bound(t, "train", wellknown.NodeName, nodes)
	members := 0
	for _, step := range []string{wellknown.StepName, wellknown.NodeName} {
		pods, _ := own.pods(t, "train", step)
		for i := range pods {
			if pods[i].Annotations[gang.Annotation] == "train" {
				members++
			}
		}
		if step == wellknown.StepName && (len(pods) == 0 || members > 0) {
			t.Errorf("of %d pods of the step, %d are in the group", len(pods), members)
		}
	}
	if members != nodes {
		t.Errorf("%d pods are in the group, want the %d that train", members, nodes)
	}
	own.trained.Store(true)
	own.completes(t, "train")
}
