// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"fmt"
	"slices"

	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/internal/wellknown"
)

// maxDependencies is the maximum number of dependencies of a job (sigs.k8s.io/jobset v0.12.0
// api/jobset/v1alpha2/jobset_types.go:353).
const maxDependencies = 5

// await makes every job that is not an initializer depend on the completion of the gate, unless it depends on a job that does.
// Dependencies on jobs that the gate replaced become dependencies on the gate.
func await(jobs []jobset.ReplicatedJob, replaced map[string]bool) error {
	for i := range jobs {
		jobs[i].DependsOn = redirect(jobs[i].DependsOn, replaced)
	}
	waits := map[string]bool{}
	for i := range jobs { // in order, since a job can only depend on earlier ones
		job := &jobs[i]
		waits[job.Name] = slices.ContainsFunc(job.DependsOn, func(on jobset.DependsOn) bool { return on.Name == wellknown.StepName || waits[on.Name] })
		if waits[job.Name] || isInitializer(job) {
			continue
		}
		if len(job.DependsOn) == maxDependencies {
			return fmt.Errorf("job %q depends on %d jobs, the most that JobSet takes, and none of them waits for the step %s: take one out", job.Name, maxDependencies, wellknown.StepName)
		}
		job.DependsOn = append(job.DependsOn, jobset.DependsOn{Name: wellknown.StepName, Status: jobset.DependencyComplete})
		waits[job.Name] = true
	}
	return nil
}

// redirect replaces dependencies on replaced jobs with a single one on the gate's completion: its condition Ready would be true as
// soon as it runs.
func redirect(dependencies []jobset.DependsOn, replaced map[string]bool) []jobset.DependsOn {
	var kept []jobset.DependsOn
	gated := false
	for _, on := range dependencies {
		if !replaced[on.Name] {
			kept = append(kept, on)
			continue
		}
		if !gated {
			kept = append(kept, jobset.DependsOn{Name: wellknown.StepName, Status: jobset.DependencyComplete})
		}
		gated = true
	}
	return kept
}
