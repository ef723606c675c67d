// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plugin gives TrainJobs their caches from within Kubeflow Trainer, for those who build a Trainer of their own: no admission webhook
// of ours is then needed. Trainer has no registration for plugins from outside (kubeflow/trainer#2750); what it does have is a map of
// runtimes that its controller and webhooks are given, and this package decorates those.
package plugin

import (
	"context"
	"errors"
	"fmt"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/runtime"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/kubeflow/datacache/internal/admit"
	"github.com/kubeflow/datacache/internal/inject"
)

// Settings are the platform's choices for what is added. The zero value is good.
type Settings = inject.Settings

// Decorate wraps the runtimes that Trainer's runtimecore.New made, in place: give the map to controller.SetupControllers and webhooks.Setup
// afterwards. A TrainJob that asks for a cache is built from its runtime's twin; the TrainJob itself stays as its user wrote it. The twins,
// DataCaches and caches are the work of package controller, in the same process or another. Readers are asked in turn for runtimes and
// DataCaches: the manager's client, and its API reader after it.
func Decorate(runtimes map[string]runtime.Runtime, settings Settings, readers ...client.Reader) {
	judge := &admit.Admission{Readers: readers, Settings: settings}
	for kind, inner := range runtimes {
		runtimes[kind] = &decorated{Runtime: inner, admission: judge}
	}
}

// decorated is one of Trainer's runtimes; what it doesn't override is Trainer's own. It may be used by many goroutines.
type decorated struct {
	runtime.Runtime
	admission *admit.Admission
}

var _ runtime.Runtime = (*decorated)(nil)

// NewObjects are the TrainJob's JobSet and what belongs to it.
func (d *decorated) NewObjects(ctx context.Context, job *trainer.TrainJob) ([]apiruntime.ApplyConfiguration, error) {
	injected, errs, err := d.inject(ctx, job)
	if err = errors.Join(err, errs.ToAggregate()); err != nil {
		return nil, fmt.Errorf("add the cache to the TrainJob: %w", err)
	}
	return d.Runtime.NewObjects(ctx, injected)
}

// ValidateObjects is what Trainer's own validating webhook says of a TrainJob, and on creation what we say of its cache.
func (d *decorated) ValidateObjects(ctx context.Context, old, job *trainer.TrainJob) (admission.Warnings, field.ErrorList) {
	injected, errs, err := d.inject(ctx, job)
	if err == nil && len(errs) == 0 && injected != job && old == nil {
		errs, err = d.admission.Validate(ctx, job.Namespace, injected)
	}
	if err != nil {
		errs = append(errs, field.InternalError(field.NewPath("spec", "runtimeRef"), err))
	}
	if len(errs) > 0 {
		return nil, errs
	}
	if old != nil && injected != job {
		if old, errs, err = d.inject(ctx, old); err != nil || len(errs) > 0 {
			return nil, append(errs, field.InternalError(field.NewPath("spec"), err))
		}
	}
	return d.Runtime.ValidateObjects(ctx, old, injected)
}

// inject is the TrainJob as Trainer shall see it: itself where it asks for no cache, else an edited copy.
func (d *decorated) inject(ctx context.Context, job *trainer.TrainJob) (*trainer.TrainJob, field.ErrorList, error) {
	if !inject.Matches(job) {
		return job, nil, nil
	}
	injected := job.DeepCopy()
	errs, err := d.admission.Mutate(ctx, job.Namespace, injected)
	return injected, errs, err
}
