// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package admit brings to package inject what it judges a TrainJob by: the runtime and the DataCache that the TrainJob names. The webhook
// and the Trainer plugin both stand on it.
package admit

import (
	"context"
	"fmt"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/inject"
	"github.com/kubeflow/datacache/internal/runtimes"
)

// Admission judges TrainJobs. It may be used by many goroutines.
type Admission struct {
	// Readers are asked in turn: an informer's cache first, the API server after it, since what a TrainJob names may be a moment old.
	Readers []client.Reader
	// Settings of what is added.
	Settings inject.Settings
}

// Mutate edits a new TrainJob in place, if it inject.Asks for a cache. The namespace is the TrainJob's, which may not carry it yet; unique
// is for inject.Settings.
func (a *Admission) Mutate(ctx context.Context, namespace, unique string, job *trainer.TrainJob) (field.ErrorList, error) {
	runtime, err := runtimes.Find(ctx, namespace, inject.RuntimeRef(job), a.Readers...)
	if err != nil || !inject.Asks(job, runtime) {
		return nil, err
	}
	settings := a.Settings
	settings.Unique = unique
	return inject.Mutate(job, nil, runtime, settings), nil
}

// Validate refuses a new TrainJob, after Mutate, whose cache can't be: for what it asks, for its runtime, or for the DataCache it names.
func (a *Admission) Validate(ctx context.Context, namespace string, job *trainer.TrainJob) (field.ErrorList, error) {
	runtime, err := runtimes.Find(ctx, namespace, inject.RuntimeRef(job), a.Readers...)
	if err != nil {
		return nil, err
	}
	if !inject.Asks(job, runtime) {
		return nil, nil
	}
	if runtime == nil {
		if err := a.missing(ctx, namespace, job); err != nil {
			return nil, err
		}
	}
	asked, errs := inject.Validate(job, runtime)
	if len(errs) > 0 {
		return errs, nil
	}
	return a.checkCaches(ctx, namespace, job, asked)
}

// checkCaches looks at the DataCache that the TrainJob asks for, and at the one that has the TrainJob's name.
func (a *Admission) checkCaches(ctx context.Context, namespace string, job *trainer.TrainJob, asked *inject.Request) (field.ErrorList, error) {
	var errs field.ErrorList
	if asked.Reference != nil {
		if asked.Reference.Namespace == "" {
			asked.Reference.Namespace = namespace
		}
		cache, err := a.find(ctx, *asked.Reference)
		if err != nil {
			return nil, err
		}
		labels, err := NamespaceLabels(ctx, namespace, cache, a.Readers[len(a.Readers)-1])
		if err != nil {
			return nil, err
		}
		errs = inject.CheckReference(namespace, labels, *asked.Reference, cache)
	}
	if job.Name == "" { // of generateName; the API server has not chosen it yet
		return errs, nil
	}
	alike, err := a.find(ctx, client.ObjectKey{Namespace: namespace, Name: job.Name})
	if err != nil {
		return nil, err
	}
	return append(errs, inject.CheckName(job, asked, alike)...), nil
}

// NamespaceLabels are the labels of a namespace where inject.MayUse asks for them, else nil. The reader must be the API server: the right
// to get a namespace is enough then.
func NamespaceLabels(ctx context.Context, namespace string, cache *v1alpha1.DataCache, live client.Reader) (map[string]string, error) {
	if cache == nil || !inject.NeedsLabels(namespace, cache) {
		return nil, nil
	}
	found := &corev1.Namespace{}
	if err := live.Get(ctx, client.ObjectKey{Name: namespace}, found); err != nil {
		return nil, fmt.Errorf("get the Namespace %s: %w", namespace, err)
	}
	return found.Labels, nil
}

// find gets a DataCache, nil if there is none.
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

// missing tells that the twin of a runtime, which Mutate found good, is not made yet. A runtime that doesn't exist is for Trainer to refuse.
func (a *Admission) missing(ctx context.Context, namespace string, job *trainer.TrainJob) error {
	ref := inject.RuntimeRef(job)
	kind, name := inject.OriginalRuntime(job)
	if ref.Name != inject.TwinName(name) {
		return nil
	}
	twin := ref.Name
	ref.Kind, ref.Name = &kind, name
	source, err := runtimes.Find(ctx, namespace, ref, a.Readers...)
	if err != nil || source == nil {
		return err
	}
	return apierrors.NewServiceUnavailable(fmt.Sprintf(
		"the runtime %s is not made yet from %s: try again in a few seconds; if this lasts, see the events of %[2]s and the log of datacache-manager", twin, name))
}
