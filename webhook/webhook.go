// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package webhook is the admission webhook: it points a TrainJob that requests a cache at a runtime with a step that waits for the
// cache, or rejects it with the reason.
//
// The decisions are made by package inject, from the TrainJob, its runtime and the DataCache that it names. The API server calls the
// webhook only for such TrainJobs (matchConditions in manifests/base/webhook), so that no others depend on it.
package webhook

import (
	"fmt"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"go.opentelemetry.io/otel/trace"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/internal/admit"
	"github.com/kubeflow/datacache/internal/inject"
)

// The paths that the API server calls (manifests/base/webhook).
const (
	MutatePath   = "/mutate-trainjob"
	ValidatePath = "/validate-trainjob"
)

// Setup registers both webhooks with the manager's webhook server. The manager's scheme must contain Trainer's types and ours. If tracer
// is nil, no spans are made.
func Setup(mgr ctrl.Manager, settings inject.Settings, tracer trace.Tracer) error {
	judge := &admit.Admission{Readers: []client.Reader{mgr.GetClient(), mgr.GetAPIReader()}, Mapper: mgr.GetRESTMapper(), Settings: settings, Tracer: tracer}
	err := ctrl.NewWebhookManagedBy(mgr, &trainer.TrainJob{}).
		WithDefaulter(&mutator{judge}).WithDefaulterCustomPath(MutatePath).
		WithValidator(&validator{judge}).WithValidatorCustomPath(ValidatePath).
		Complete()
	if err != nil {
		return fmt.Errorf("set up the webhooks of TrainJobs: %w", err)
	}
	return nil
}
