// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/internal/gang"
)

// MutateJobSetPath is called for JobSets with our step in a gang (manifests/components/gangs).
const MutateJobSetPath = "/mutate-jobset"

// dismisser takes the steps that end before training out of the gang of a JobSet.
type dismisser struct{}

var _ admission.Defaulter[*jobset.JobSet] = dismisser{}

// Default edits the JobSet in place.
func (dismisser) Default(_ context.Context, set *jobset.JobSet) error {
	gang.Dismiss(&set.Spec)
	return nil
}
