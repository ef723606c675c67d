// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runtimes looks up the runtime that a TrainJob names, of either kind.
package runtimes

import (
	"context"
	"fmt"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/internal/request"
)

// Find returns the runtime that ref, as completed by request.RuntimeRef, names; nil if it does not exist or is not in Trainer's API
// group. Readers are tried in order: an informer's cache first, then the API server, since a runtime may have been created a moment
// ago. A TrainingRuntime is looked up in the TrainJob's namespace.
func Find(ctx context.Context, namespace string, ref trainer.RuntimeRef, readers ...client.Reader) (*request.Runtime, error) {
	if *ref.APIGroup != trainer.GroupVersion.Group {
		return nil, nil
	}
	for _, reader := range readers {
		found, err := find(ctx, reader, client.ObjectKey{Namespace: namespace, Name: ref.Name}, *ref.Kind)
		if !apierrors.IsNotFound(err) {
			return found, err
		}
	}
	return nil, nil
}

func find(ctx context.Context, reader client.Reader, key client.ObjectKey, kind string) (*request.Runtime, error) {
	switch kind {
	case trainer.ClusterTrainingRuntimeKind:
		key.Namespace = ""
		runtime := &trainer.ClusterTrainingRuntime{}
		if err := reader.Get(ctx, key, runtime); err != nil {
			return nil, fmt.Errorf("get the ClusterTrainingRuntime %s: %w", key.Name, err)
		}
		return request.Cluster(runtime), nil
	case trainer.TrainingRuntimeKind:
		runtime := &trainer.TrainingRuntime{}
		if err := reader.Get(ctx, key, runtime); err != nil {
			return nil, fmt.Errorf("get the TrainingRuntime %s: %w", key, err)
		}
		return request.Namespaced(runtime), nil
	}
	return nil, nil
}
