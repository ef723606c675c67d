// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plugin gives TrainJobs their caches from within Kubeflow Trainer, for users who build their own Trainer: no admission
// webhook of ours is then needed. Trainer has no plugin registration (kubeflow/trainer#2750), but its controller and webhooks take a
// map of runtimes, and this package wraps those.
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
	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/runtimes"
)

// Settings are the platform's settings for what is injected. The zero value is valid.
type Settings = inject.Settings

// Decorate wraps in place the runtimes that Trainer's runtimecore.New made: pass the map to controller.SetupControllers and
// webhooks.Setup afterwards. A TrainJob that requests a cache is built from its runtime's twin; the TrainJob itself is not changed.
// Package controller makes the twins, DataCaches and caches, in the same process or another one. Runtimes and DataCaches are looked
// up in readers, in order: pass the manager's client, then its API reader. A reader that is
// a client.Client also tells which kinds the cluster has.
func Decorate(trainers map[string]runtime.Runtime, settings Settings, readers ...client.Reader) {
	judge := &admit.Admission{Readers: readers, Settings: settings}
	for _, reader := range readers {
		if c, ok := reader.(client.Client); ok && judge.Mapper == nil {
			judge.Mapper = c.RESTMapper()
		}
	}
	for kind, inner := range trainers {
		trainers[kind] = &decorated{Runtime: inner, admission: judge, readers: readers}
	}
}

// decorated wraps one of Trainer's runtimes; methods that it doesn't override are Trainer's. It is safe for concurrent use.
type decorated struct {
	runtime.Runtime
	admission *admit.Admission
	readers   []client.Reader
}

var _ runtime.Runtime = (*decorated)(nil)

// NewObjects returns the TrainJob's JobSet and related objects. Trainer builds a TrainJob from the version of the runtime with which
// it was first built, even if the runtime was changed or deleted since; so does this method.
func (d *decorated) NewObjects(ctx context.Context, job *trainer.TrainJob) ([]apiruntime.ApplyConfiguration, error) {
	injected, errs, err := d.inject(ctx, job, request.Read(job, job.Namespace))
	if err = errors.Join(err, errs.ToAggregate()); err != nil {
		return nil, fmt.Errorf("add the cache to the TrainJob: %w", err)
	}
	objects, err := d.Runtime.NewObjects(ctx, injected)
	if err != nil {
		return nil, err
	}
	return objects, dismiss(objects)
}

// ValidateObjects returns the result of Trainer's own validation of a TrainJob and, on creation, of ours. old is the TrainJob before
// an update, nil on creation.
func (d *decorated) ValidateObjects(ctx context.Context, old, job *trainer.TrainJob) (admission.Warnings, field.ErrorList) {
	parsed := request.Read(job, job.Namespace)
	if old != nil {
		return d.validateUpdate(ctx, old, job, parsed)
	}
	injected, errs, err := d.inject(ctx, job, parsed)
	var warnings admission.Warnings
	if err == nil && len(errs) == 0 {
		warnings, errs, err = d.admission.Validate(ctx, request.Read(injected, injected.Namespace))
	}
	if err != nil {
		errs = append(errs, field.InternalError(field.NewPath("spec", "runtimeRef"), err))
	}
	if len(errs) > 0 {
		return nil, errs
	}
	more, errs := d.Runtime.ValidateObjects(ctx, nil, injected)
	return append(warnings, more...), errs
}

// validateUpdate validates an update of a TrainJob that was admitted. If its runtime is gone it validates nothing, since it must stay
// possible to suspend, resume and delete the TrainJob.
func (d *decorated) validateUpdate(ctx context.Context, old, job *trainer.TrainJob, parsed *request.Job) (admission.Warnings, field.ErrorList) {
	if parsed.Kind == request.Nothing {
		return d.Runtime.ValidateObjects(ctx, old, job)
	}
	injected, errs, err := d.inject(ctx, job, parsed)
	if err != nil {
		return nil, field.ErrorList{field.InternalError(field.NewPath("spec", "runtimeRef"), err)}
	}
	if len(errs) > 0 {
		return nil, nil
	}
	runtime, err := runtimes.Find(ctx, job.Namespace, request.RuntimeRef(injected.Spec.RuntimeRef), d.readers...)
	if err != nil {
		return nil, field.ErrorList{field.InternalError(field.NewPath("spec", "runtimeRef"), err)}
	}
	if runtime == nil {
		return nil, nil
	}
	before, errs, err := d.inject(ctx, old, request.Read(old, old.Namespace))
	if err != nil || len(errs) > 0 {
		return nil, append(errs, field.InternalError(field.NewPath("spec"), err))
	}
	return d.Runtime.ValidateObjects(ctx, before, injected)
}

// inject returns the TrainJob as Trainer must see it: unchanged if it requests no cache or was built without one, otherwise an edited
// copy. The field errors say why it can't have its cache.
func (d *decorated) inject(ctx context.Context, job *trainer.TrainJob, parsed *request.Job) (*trainer.TrainJob, field.ErrorList, error) {
	if parsed.Kind == request.Nothing {
		return job, nil, nil
	}
	built, err := d.snapshot(ctx, job)
	if err != nil {
		return nil, nil, err
	}
	if built != nil && !request.HasGate(built.Labels, built.Spec) {
		return job, nil, nil
	}
	injected := job.DeepCopy()
	if built != nil {
		parsed.Runtime = trainer.RuntimeRef{APIGroup: &trainer.GroupVersion.Group, Kind: &built.Kind, Name: built.Name}
		settings, err := d.admission.SettingsFor(ctx, parsed)
		if err == nil {
			settings, err = d.asMade(ctx, client.ObjectKeyFromObject(job), settings)
		}
		if err != nil {
			return nil, nil, err
		}
		return injected, inject.Mutate(injected, parsed, built, settings), nil
	}
	errs, err := d.admission.Mutate(ctx, parsed, "", injected)
	return injected, errs, err
}
