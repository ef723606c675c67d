// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package webhook is the admission webhook: it points a TrainJob that requests a cache at a runtime with a step that waits for the
// cache, or rejects it with the reason.
//
// The decisions are made by package inject, from the TrainJob, its runtime and the DataCache that it names. The API server calls the
// webhook only for such TrainJobs, and for those whose runtime may have the step, which are admitted without it (matchConditions in
// manifests/base/webhook): no others depend on it.
package webhook

import (
	"fmt"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"go.opentelemetry.io/otel/trace"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/internal/admit"
	"github.com/kubeflow/datacache/internal/inject"
)

// The paths that the API server calls (manifests/base/webhook).
const (
	MutatePath   = "/mutate-trainjob"
	ValidatePath = "/validate-trainjob"
	// These are for TrainJobs that name only a runtime, most of which have nothing to do with caches: if the runtime can't be found out,
	// they are admitted as they are.
	MutateGatePath   = "/mutate-gate-trainjob"
	ValidateGatePath = "/validate-gate-trainjob"
)

// Setup registers the webhooks with the manager's webhook server. The manager's scheme must contain Trainer's types and ours. If tracer
// is nil, no spans are made.
func Setup(mgr ctrl.Manager, settings inject.Settings, tracer trace.Tracer) error {
	judge := &admit.Admission{Readers: []client.Reader{mgr.GetClient(), mgr.GetAPIReader()}, Mapper: mgr.GetRESTMapper(), Settings: settings, Tracer: tracer}
	err := ctrl.NewWebhookManagedBy(mgr, &trainer.TrainJob{}).
		WithDefaulter(&mutator{admission: judge}).WithDefaulterCustomPath(MutatePath).
		WithValidator(&validator{admission: judge}).WithValidatorCustomPath(ValidatePath).
		Complete()
	if err != nil {
		return fmt.Errorf("set up the webhooks of TrainJobs: %w", err)
	}
	lenient := *judge
	lenient.Settings.HubMirror = inject.HubMirror{} // namespaces choose it, by a webhook of its own
	server := mgr.GetWebhookServer()
	server.Register(MutateGatePath, admission.WithDefaulter[*trainer.TrainJob](mgr.GetScheme(), &mutator{&lenient, true}))
	server.Register(ValidateGatePath, admission.WithValidator[*trainer.TrainJob](mgr.GetScheme(), &validator{&lenient, true}))
	server.Register(MutateJobSetPath, admission.WithDefaulter[*jobset.JobSet](mgr.GetScheme(), dismisser{}))
	return nil
}
