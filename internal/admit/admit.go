// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package admit looks up the runtime and the DataCache that a TrainJob names and passes them to package inject, which mutates and
// validates the TrainJob. The webhook and the Trainer plugin both use it.
package admit

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/inject"
	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/runtimes"
	"github.com/kubeflow/datacache/internal/tracing"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// Admission mutates and validates TrainJobs. It is safe for concurrent use.
type Admission struct {
	// Readers are tried in order: an informer's cache first, then the API server, since what a TrainJob names may have been created a
	// moment ago.
	Readers []client.Reader
	// Mapper tells which kinds the cluster has; nil: whether Fluid is installed is not checked.
	Mapper meta.RESTMapper
	// Settings of what is injected.
	Settings inject.Settings
	// Tracer of the decisions; nil: no spans are made.
	Tracer trace.Tracer
}

// Mutate edits a new TrainJob in place, if it requests a cache (request.Job.Wants) or the settings name a mirror of the hub. parsed is the
// TrainJob as it was read; unique is for inject.Settings.
func (a *Admission) Mutate(ctx context.Context, parsed *request.Job, unique string, job *trainer.TrainJob) (errs field.ErrorList, err error) {
	ctx, end := a.trace(ctx, "mutate TrainJob", parsed)
	defer func() { end(errs, err) }()
	return a.mutate(ctx, parsed, unique, job)
}

// trace starts the span of a decision; end ends it with the decision.
func (a *Admission) trace(ctx context.Context, name string, parsed *request.Job) (_ context.Context, end func(field.ErrorList, error)) {
	if a.Tracer == nil {
		return ctx, func(field.ErrorList, error) {}
	}
	ctx, span := a.Tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("k8s.namespace.name", parsed.Namespace), attribute.String("datacache.trainjob", cmp.Or(parsed.Name, parsed.GenerateName))))
	return ctx, func(errs field.ErrorList, err error) {
		span.SetAttributes(attribute.Bool("datacache.allowed", err == nil && len(errs) == 0))
		tracing.End(span, errors.Join(err, errs.ToAggregate()))
	}
}

func (a *Admission) mutate(ctx context.Context, parsed *request.Job, unique string, job *trainer.TrainJob) (field.ErrorList, error) {
	runtime, err := runtimes.Find(ctx, parsed.Namespace, parsed.Runtime, a.Readers...)
	if err != nil {
		return nil, err
	}
	settings, err := a.SettingsFor(ctx, parsed)
	if err != nil {
		return nil, err
	}
	settings.Unique = unique
	if parsed.Wants(runtime) {
		if errs := inject.Mutate(job, parsed, runtime, settings); len(errs) > 0 {
			return errs, nil
		}
	}
	inject.UseHub(job, parsed.Kind, runtime, settings)
	return nil, nil
}

// SettingsFor returns the settings with which a new TrainJob is mutated, including the DataCache that it names.
func (a *Admission) SettingsFor(ctx context.Context, parsed *request.Job) (inject.Settings, error) {
	settings := a.Settings
	if len(parsed.References) != 1 { // only one can be mounted
		return settings, nil
	}
	var err error
	settings.Cache, err = a.find(ctx, parsed.References[0].Key)
	return settings, err
}

// Validate validates a new TrainJob, read after Mutate: its request, its runtime, and the DataCache that it names. Warnings are for the user;
// they do not reject the TrainJob.
func (a *Admission) Validate(ctx context.Context, parsed *request.Job) (warnings []string, errs field.ErrorList, err error) {
	ctx, end := a.trace(ctx, "validate TrainJob", parsed)
	defer func() { end(errs, err) }()
	return a.validate(ctx, parsed)
}

func (a *Admission) validate(ctx context.Context, parsed *request.Job) (warnings []string, errs field.ErrorList, err error) {
	runtime, err := runtimes.Find(ctx, parsed.Namespace, parsed.Runtime, a.Readers...)
	if err != nil {
		return nil, nil, err
	}
	if !parsed.Wants(runtime) {
		return nil, nil, nil
	}
	if runtime == nil {
		if err := a.missing(ctx, parsed); err != nil {
			return nil, nil, err
		}
	}
	asked, errs := inject.Validate(parsed, runtime)
	if len(errs) > 0 {
		return nil, errs, nil
	}
	if asked.Cache.Access.Readers == v1alpha1.ReadersAnyone && a.Settings.NoAnyone {
		return nil, field.ErrorList{field.Forbidden(field.NewPath("spec", "initializer", "dataset", "env"),
			"READERS=Anyone, of the TrainJob or of its runtime's step "+wellknown.StepName+", is not allowed by this installation of datacache (--allow-anyone=false): set READERS to Known, or name another runtime")}, nil
	}
	named, errs, err := a.checkCaches(ctx, parsed, asked)
	if err != nil || len(errs) > 0 {
		return nil, errs, err
	}
	at, value, files := parsed.Files(asked, named)
	if files == nil {
		return nil, nil, nil
	}
	if errs := inject.CheckMount(parsed.MountField(), runtime, files.MountPath); len(errs) > 0 {
		return nil, errs, nil
	}
	return a.checkFluid(ctx, parsed.Namespace, at, value, files)
}

// checkCaches checks the DataCaches that the TrainJob requests and the one that has the TrainJob's name. named is the only one that it
// requests by name, if that exists.
func (a *Admission) checkCaches(ctx context.Context, parsed *request.Job, asked *request.Request) (named *v1alpha1.DataCache, errs field.ErrorList, err error) {
	alone := len(asked.References) == 1
	for _, reference := range asked.References {
		found, err := a.find(ctx, reference.Key)
		if err != nil {
			return nil, nil, err
		}
		labels, err := NamespaceLabels(ctx, parsed.Namespace, found, a.Readers[len(a.Readers)-1])
		if err != nil {
			return nil, nil, err
		}
		errs = append(errs, request.CheckReference(parsed.Namespace, labels, reference.Key, alone, found)...)
		errs = append(errs, request.CheckDataset(reference, found)...)
		if found != nil && found.Spec.Arrow != nil {
			errs = append(errs, parsed.Workers.Check(found.Spec.Arrow.DataNodes)...)
		}
		if alone {
			named = found
		}
	}
	if asked.Cache.Fluid != nil {
		if named, err = a.find(ctx, client.ObjectKey{Namespace: parsed.Namespace, Name: asked.Name}); err != nil {
			return nil, nil, err
		}
		errs = request.CheckCache(asked, named)
	}
	if parsed.Name == "" { // the API server has not generated the name yet
		return named, errs, nil
	}
	alike, err := a.find(ctx, client.ObjectKey{Namespace: parsed.Namespace, Name: parsed.Name})
	if err != nil {
		return nil, nil, err
	}
	return named, append(errs, request.CheckName(parsed, asked, alike)...), nil
}

// NamespaceLabels returns the labels of a namespace if request.MayUse needs them, otherwise nil. The reader must be the API server's,
// so that permission to get a namespace is sufficient.
func NamespaceLabels(ctx context.Context, namespace string, cache *v1alpha1.DataCache, live client.Reader) (map[string]string, error) {
	if cache == nil || !request.NeedsLabels(namespace, cache) {
		return nil, nil
	}
	found := &corev1.Namespace{}
	if err := live.Get(ctx, client.ObjectKey{Name: namespace}, found); err != nil {
		return nil, fmt.Errorf("get the Namespace %s: %w", namespace, err)
	}
	return found.Labels, nil
}

// find returns a DataCache; nil if there is none.
func (a *Admission) find(ctx context.Context, key client.ObjectKey) (*v1alpha1.DataCache, error) {
	for _, reader := range a.Readers {
		cache := &v1alpha1.DataCache{}
		err := reader.Get(ctx, key, cache)
		if err == nil {
			return cache, nil
		}
		if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("get the DataCache %s: %w", key, err)
		}
	}
	return nil, nil
}

// missing returns an error if the twin of a valid runtime has not been created yet. A runtime that doesn't exist is rejected by
// Trainer.
func (a *Admission) missing(ctx context.Context, parsed *request.Job) error {
	ref := parsed.Runtime
	kind, name := parsed.OriginalKind, parsed.OriginalName
	if ref.Name != wellknown.TwinName(name) {
		return nil
	}
	twin := ref.Name
	ref.Kind, ref.Name = &kind, name
	source, err := runtimes.Find(ctx, parsed.Namespace, ref, a.Readers...)
	if err != nil || source == nil {
		return err
	}
	return apierrors.NewServiceUnavailable(fmt.Sprintf(
		"the runtime %s is not made yet from %s: try again in a few seconds; if this lasts, see the events of %[2]s and the log of datacache-manager", twin, name))
}
