// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package webhook is admission: a TrainJob that asks for a cache is pointed at a runtime that waits for one, or refused with the reason.
//
// It decides nothing itself: package inject does, from the TrainJob, its runtime and the DataCache that it names. The API server calls it
// for such TrainJobs alone (matchConditions in manifests/base/webhook), so that no other one depends on it.
package webhook

import (
	"fmt"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/internal/admit"
	"github.com/kubeflow/datacache/internal/inject"
)

// Where the API server calls (manifests/base/webhook).
const (
	MutatePath   = "/mutate-trainjob"
	ValidatePath = "/validate-trainjob"
)

// Setup serves both webhooks from the manager's webhook server. The manager's scheme must know Trainer's types and ours.
func Setup(mgr ctrl.Manager, settings inject.Settings) error {
	judge := &admit.Admission{Readers: []client.Reader{mgr.GetClient(), mgr.GetAPIReader()}, Settings: settings}
	err := ctrl.NewWebhookManagedBy(mgr, &trainer.TrainJob{}).
		WithDefaulter(&mutator{judge}).WithDefaulterCustomPath(MutatePath).
		WithValidator(&validator{judge}).WithValidatorCustomPath(ValidatePath).
		Complete()
	if err != nil {
		return fmt.Errorf("set up the webhooks of TrainJobs: %w", err)
	}
	return nil
}
