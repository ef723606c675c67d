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
	"github.com/kubeflow/datacache/internal/runtimes"
)

// Settings are the platform's choices for what is added. The zero value is good.
type Settings = inject.Settings

// Decorate wraps the runtimes that Trainer's runtimecore.New made, in place: give the map to controller.SetupControllers and webhooks.Setup
// afterwards. A TrainJob that asks for a cache is built from its runtime's twin; the TrainJob itself stays as its user wrote it. The twins,
// DataCaches and caches are the work of package controller, in the same process or another. Readers are asked in turn for runtimes and
// DataCaches: the manager's client, and its API reader after it.
func Decorate(trainers map[string]runtime.Runtime, settings Settings, readers ...client.Reader) {
	judge := &admit.Admission{Readers: readers, Settings: settings}
	for kind, inner := range trainers {
		trainers[kind] = &decorated{Runtime: inner, admission: judge, readers: readers}
	}
}

// decorated is one of Trainer's runtimes; what it doesn't override is Trainer's own. It may be used by many goroutines.
type decorated struct {
	runtime.Runtime
	admission *admit.Admission
	readers   []client.Reader
}

var _ runtime.Runtime = (*decorated)(nil)

// NewObjects are the TrainJob's JobSet and what belongs to it. Trainer builds a TrainJob from the runtime as it was when it built it first,
// which may be changed or gone by now: so do we.
func (d *decorated) NewObjects(ctx context.Context, job *trainer.TrainJob) ([]apiruntime.ApplyConfiguration, error) {
	injected, errs, err := d.inject(ctx, job)
	if err = errors.Join(err, errs.ToAggregate()); err != nil {
		return nil, fmt.Errorf("add the cache to the TrainJob: %w", err)
	}
	return d.Runtime.NewObjects(ctx, injected)
}

// ValidateObjects is what Trainer's own validating webhook says of a TrainJob, and on creation what we say of its cache. Old is the TrainJob
// before an update, nil on creation.
func (d *decorated) ValidateObjects(ctx context.Context, old, job *trainer.TrainJob) (admission.Warnings, field.ErrorList) {
	if old != nil {
		return d.validateUpdate(ctx, old, job)
	}
	injected, errs, err := d.inject(ctx, job)
	if err == nil && len(errs) == 0 {
		errs, err = d.admission.Validate(ctx, job.Namespace, injected)
	}
	if err != nil {
		errs = append(errs, field.InternalError(field.NewPath("spec", "runtimeRef"), err))
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return d.Runtime.ValidateObjects(ctx, nil, injected)
}

// validateUpdate judges what may be changed on a TrainJob that was admitted. Where its runtime is gone there is nothing to judge by, and it
// must stay possible to suspend, resume and delete it.
func (d *decorated) validateUpdate(ctx context.Context, old, job *trainer.TrainJob) (admission.Warnings, field.ErrorList) {
	if !inject.Matches(job) {
		return d.Runtime.ValidateObjects(ctx, old, job)
	}
	injected, errs, err := d.inject(ctx, job)
	if err != nil {
		return nil, field.ErrorList{field.InternalError(field.NewPath("spec", "runtimeRef"), err)}
	}
	if len(errs) > 0 {
		return nil, nil
	}
	runtime, err := runtimes.Find(ctx, job.Namespace, inject.RuntimeRef(injected), d.readers...)
	if err != nil {
		return nil, field.ErrorList{field.InternalError(field.NewPath("spec", "runtimeRef"), err)}
	}
	if runtime == nil {
		return nil, nil
	}
	before, errs, err := d.inject(ctx, old)
	if err != nil || len(errs) > 0 {
		return nil, append(errs, field.InternalError(field.NewPath("spec"), err))
	}
	return d.Runtime.ValidateObjects(ctx, before, injected)
}

// inject is the TrainJob as Trainer shall see it: itself where it asks for no cache or was built without one, else an edited copy. The
// errors say why it can't have its cache.
func (d *decorated) inject(ctx context.Context, job *trainer.TrainJob) (*trainer.TrainJob, field.ErrorList, error) {
	if !inject.Matches(job) {
		return job, nil, nil
	}
	built, err := d.snapshot(ctx, job)
	if err != nil {
		return nil, nil, err
	}
	if built != nil && !inject.HasGate(built.Labels, built.Spec) {
		return job, nil, nil
	}
	injected := job.DeepCopy()
	if built != nil {
		injected.Spec.RuntimeRef = trainer.RuntimeRef{APIGroup: &trainer.GroupVersion.Group, Kind: &built.Kind, Name: built.Name}
		settings := d.admission.Settings
		if settings.NoZoneAffinity, err = d.withoutZone(ctx, job); err != nil {
			return nil, nil, err
		}
		return injected, inject.Mutate(injected, nil, built, settings), nil
	}
	errs, err := d.admission.Mutate(ctx, job.Namespace, "", injected)
	return injected, errs, err
}
