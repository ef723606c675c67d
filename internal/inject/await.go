// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"fmt"
	"slices"

	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// maxDependencies is how many jobs one may depend on (sigs.k8s.io/jobset v0.12.0 api/jobset/v1alpha2/jobset_types.go:353).
const maxDependencies = 5

// await makes every job that is no initializer wait until the gate is complete, unless it waits for one that does. What depended on a
// job that the gate replaced depends on the gate.
func await(jobs []jobset.ReplicatedJob, replaced map[string]bool) error {
	for i := range jobs {
		jobs[i].DependsOn = redirect(jobs[i].DependsOn, replaced)
	}
	waits := map[string]bool{}
	for i := range jobs { // in order, since a job depends on earlier ones alone
		job := &jobs[i]
		waits[job.Name] = slices.ContainsFunc(job.DependsOn, func(on jobset.DependsOn) bool { return on.Name == StepName || waits[on.Name] })
		if waits[job.Name] || isInitializer(job) {
			continue
		}
		if len(job.DependsOn) == maxDependencies {
			return fmt.Errorf("job %q depends on %d jobs, the most that JobSet takes, and none of them waits for the step %s: take one out", job.Name, maxDependencies, StepName)
		}
		job.DependsOn = append(job.DependsOn, jobset.DependsOn{Name: StepName, Status: jobset.DependencyComplete})
		waits[job.Name] = true
	}
	return nil
}

// redirect points dependencies on replaced jobs at the gate, once, to be complete: Ready would be true as soon as it runs.
func redirect(dependencies []jobset.DependsOn, replaced map[string]bool) []jobset.DependsOn {
	var kept []jobset.DependsOn
	gated := false
	for _, on := range dependencies {
		if !replaced[on.Name] {
			kept = append(kept, on)
			continue
		}
		if !gated {
			kept = append(kept, jobset.DependsOn{Name: StepName, Status: jobset.DependencyComplete})
		}
		gated = true
	}
	return kept
}
