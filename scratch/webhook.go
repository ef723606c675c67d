// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/kubeflow/datacache/internal/claim"
)

// MutatePath is the path that the API server calls for new pods with scratch volumes.
const MutatePath = "/mutate-pod"

// SetupWebhook serves admission of pods from the manager's webhook server.
func SetupWebhook(mgr ctrl.Manager) error {
	err := ctrl.NewWebhookManagedBy(mgr, &corev1.Pod{}).WithDefaulter(mutator{}).WithDefaulterCustomPath(MutatePath).Complete()
	if err != nil {
		return fmt.Errorf("set up the webhook of pods: %w", err)
	}
	return nil
}

// mutator gates pods with scratch volumes and points their volumes at claims. It is safe for concurrent use.
type mutator struct{}

var _ admission.Defaulter[*corev1.Pod] = mutator{}

// Default edits the pod of an admission request in place.
func (mutator) Default(_ context.Context, pod *corev1.Pod) error {
	errs := claim.Mutate(pod)
	if len(errs) == 0 {
		return nil
	}
	name := pod.Name
	if name == "" {
		name = pod.GenerateName
	}
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), name, errs)
}
