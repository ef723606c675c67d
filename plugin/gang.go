// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"encoding/json"
	"fmt"

	apiruntime "k8s.io/apimachinery/pkg/runtime"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	jobsetapply "sigs.k8s.io/jobset/client-go/applyconfiguration/jobset/v1alpha2"
	coscheduling "sigs.k8s.io/scheduler-plugins/pkg/generated/applyconfiguration/scheduling/v1alpha1"
	volcano "volcano.sh/apis/pkg/client/applyconfiguration/scheduling/v1beta1"

	"github.com/kubeflow/datacache/internal/gang"
)

// dismiss edits what Trainer built for a TrainJob whose JobSet waits for a cache: the steps that end before training leave its gang, and the
// PodGroup requires only the rest. Trainer builds both together or, where the TrainJob runs, neither: a PodGroup alone, whose
// predecessor somebody deleted, is left to package controller.
func dismiss(objects []apiruntime.ApplyConfiguration) error {
	for _, object := range objects {
		built, ok := object.(*jobsetapply.JobSetApplyConfiguration)
		if !ok || built.Spec == nil {
			continue
		}
		set := &jobset.JobSetSpec{}
		text, err := json.Marshal(built.Spec)
		if err == nil {
			err = json.Unmarshal(text, set)
		}
		if err != nil {
			return fmt.Errorf("read the JobSet that Trainer built: %w", err)
		}
		if !gang.Waits(set) {
			continue
		}
		for i := range set.ReplicatedJobs {
			if pod := built.Spec.ReplicatedJobs[i].Template.Spec.Template; !gang.IsMember(&set.ReplicatedJobs[i]) && pod.ObjectMetaApplyConfiguration != nil {
				delete(pod.Labels, gang.Label)
				delete(pod.Annotations, gang.Annotation)
			}
		}
		require(objects, gang.DemandOf(set))
	}
	return nil
}

// require sets what the PodGroups among the objects require.
func require(objects []apiruntime.ApplyConfiguration, want gang.Demand) {
	for _, object := range objects {
		switch group := object.(type) {
		case *coscheduling.PodGroupApplyConfiguration:
			group.Spec.MinMember, group.Spec.MinResources = &want.Members, &want.Resources
		case *volcano.PodGroupApplyConfiguration:
			group.Spec.MinMember, group.Spec.MinResources = &want.Members, &want.Resources
		}
	}
}
