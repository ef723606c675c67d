// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"
	"fmt"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/kubeflow/datacache/internal/admit"
	"github.com/kubeflow/datacache/internal/inject"
	"github.com/kubeflow/datacache/internal/request"
)

// mutator edits TrainJobs so that they use a runtime with a step that waits for the cache. It is safe for concurrent use.
type mutator struct {
	admission *admit.Admission
	lenient   bool // a TrainJob that can't be judged is admitted
}

var _ admission.Defaulter[*trainer.TrainJob] = (*mutator)(nil)

// Default edits the TrainJob of an admission request in place.
func (m *mutator) Default(ctx context.Context, job *trainer.TrainJob) error {
	review, err := admission.RequestFromContext(ctx)
	if err != nil {
		return fmt.Errorf("mutate a TrainJob: %w", err)
	}
	if review.Operation == admissionv1.Update {
		return m.update(job, review.OldObject.Raw)
	}
	errs, err := m.admission.Mutate(ctx, request.Read(job, review.Namespace), string(review.UID), job)
	if err != nil && m.lenient {
		logf.FromContext(ctx).Error(err, "admit a TrainJob unseen")
		return nil
	}
	if err != nil {
		return err
	}
	return invalid(job, errs)
}

// update restores what was injected, and rejects adding or removing a cache.
func (m *mutator) update(job *trainer.TrainJob, before []byte) error {
	old := &trainer.TrainJob{}
	if err := json.Unmarshal(before, old); err != nil {
		return fmt.Errorf("read the TrainJob as it was: %w", err)
	}
	return invalid(job, inject.Restore(job, old))
}

// invalid returns the error response for errs, or nil if there are none.
func invalid(job *trainer.TrainJob, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	name := job.Name
	if name == "" {
		name = job.GenerateName
	}
	return apierrors.NewInvalid(trainer.GroupVersion.WithKind(trainer.TrainJobKind).GroupKind(), name, errs)
}
