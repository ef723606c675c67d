// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/internal/inject"
	"github.com/kubeflow/datacache/internal/request"
)

// Where Trainer stores the runtime that it built a TrainJob from (kubeflow/trainer v2.3.0 pkg/runtime/core/snapshot.go): a ConfigMap
// controlled by the TrainJob.
const (
	snapshotSuffix = "-runtime-snapshot"
	snapshotKey    = "runtime"
)

// snapshot returns the runtime that Trainer built the TrainJob from, nil if it hasn't been built yet.
func (d *decorated) snapshot(ctx context.Context, job *trainer.TrainJob) (*request.Runtime, error) {
	if job.UID == "" {
		return nil, nil // it is just being created
	}
	kept := &corev1.ConfigMap{}
	found, err := d.get(ctx, client.ObjectKey{Namespace: job.Namespace, Name: job.Name + snapshotSuffix}, kept)
	if err != nil || !found || !metav1.IsControlledBy(kept, job) {
		return nil, err
	}
	return parseSnapshot(kept.Data[snapshotKey])
}

// asMade returns the settings with which a TrainJob's JobSet was made, if it has one. They may have changed since then, but the pods of an
// existing JobSet are immutable, and an attempt to change them would make it impossible to resume the TrainJob.
func (d *decorated) asMade(ctx context.Context, job client.ObjectKey, settings inject.Settings) (inject.Settings, error) {
	made := &jobset.JobSet{}
	found, err := d.get(ctx, job, made)
	if found {
		settings.NoZoneAffinity, settings.NoCredentials = !inject.HasZone(&made.Spec), !inject.HasCredentials(&made.Spec)
	}
	return settings, err
}

// get reads an object from the first reader that has it; false if none has.
func (d *decorated) get(ctx context.Context, key client.ObjectKey, object client.Object) (bool, error) {
	for _, reader := range d.readers {
		err := reader.Get(ctx, key, object)
		if err == nil {
			return true, nil
		}
		if !apierrors.IsNotFound(err) {
			return false, fmt.Errorf("get %T %s: %w", object, key, err)
		}
	}
	return false, nil
}

func parseSnapshot(text string) (*request.Runtime, error) {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal([]byte(text), &kind); err != nil {
		return nil, fmt.Errorf("read Trainer's snapshot of the runtime: %w", err)
	}
	if kind.Kind == trainer.TrainingRuntimeKind {
		runtime := &trainer.TrainingRuntime{}
		if err := yaml.Unmarshal([]byte(text), runtime); err != nil {
			return nil, fmt.Errorf("read Trainer's snapshot of the TrainingRuntime: %w", err)
		}
		return request.Namespaced(runtime), nil
	}
	runtime := &trainer.ClusterTrainingRuntime{}
	if err := yaml.Unmarshal([]byte(text), runtime); err != nil {
		return nil, fmt.Errorf("read Trainer's snapshot of the ClusterTrainingRuntime: %w", err)
	}
	return request.Cluster(runtime), nil
}
