// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/kubeflow/datacache/internal/admit"
	"github.com/kubeflow/datacache/internal/request"
)

// validator rejects new TrainJobs that can't have their cache. It is safe for concurrent use.
type validator struct {
	admission *admit.Admission
	lenient   bool // a TrainJob that can't be judged is admitted
}

var _ admission.Validator[*trainer.TrainJob] = (*validator)(nil)

// ValidateCreate validates the TrainJob's request, its runtime, and the DataCache that it names.
func (v *validator) ValidateCreate(ctx context.Context, job *trainer.TrainJob) (admission.Warnings, error) {
	review, err := admission.RequestFromContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("validate a TrainJob: %w", err)
	}
	warnings, errs, err := v.admission.Validate(ctx, request.Read(job, review.Namespace))
	if err != nil && v.lenient {
		logf.FromContext(ctx).Error(err, "admit a TrainJob unseen")
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return warnings, invalid(job, errs)
}

// ValidateUpdate allows everything: the mutator has restored what was injected, and what ValidateCreate checked is immutable.
func (v *validator) ValidateUpdate(context.Context, *trainer.TrainJob, *trainer.TrainJob) (admission.Warnings, error) {
	return nil, nil
}

// ValidateDelete allows everything; it is not called.
func (v *validator) ValidateDelete(context.Context, *trainer.TrainJob) (admission.Warnings, error) {
	return nil, nil
}
