// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/kubeflow/datacache/internal/admit"
)

// validator refuses new TrainJobs whose cache can't be. It may be used by many goroutines.
type validator struct{ admission *admit.Admission }

var _ admission.Validator[*trainer.TrainJob] = (*validator)(nil)

// ValidateCreate looks at what the TrainJob asks for, at its runtime, and at the DataCache that it names.
func (v *validator) ValidateCreate(ctx context.Context, job *trainer.TrainJob) (admission.Warnings, error) {
	request, err := admission.RequestFromContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("validate a TrainJob: %w", err)
	}
	errs, err := v.admission.Validate(ctx, request.Namespace, job)
	if err != nil {
		return nil, err
	}
	return nil, invalid(job, errs)
}

// ValidateUpdate allows all: what was injected is put back before it comes here, and what was looked at is immutable.
func (v *validator) ValidateUpdate(context.Context, *trainer.TrainJob, *trainer.TrainJob) (admission.Warnings, error) {
	return nil, nil
}

// ValidateDelete allows all; it is not called.
func (v *validator) ValidateDelete(context.Context, *trainer.TrainJob) (admission.Warnings, error) {
	return nil, nil
}
