// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// TestWebhookIsDown checks what happens while the webhook is down: TrainJobs without a cache are unaffected, new ones with a cache
// are rejected instead of training without it, and those admitted before can be suspended and resumed, as Kueue does. The test breaks
// a copy of our webhook configurations, restricted to one namespace, since other tests use the real ones.
func TestWebhookIsDown(t *testing.T) {
	t.Parallel()
	runtimes(t)
	tests := map[string]func(t *testing.T, copied metav1.ObjectMeta, here *metav1.LabelSelector, nowhere admissionv1.WebhookClientConfig) client.Object{
		"mutating":   mutatingCopy,
		"validating": validatingCopy,
	}
	for kind, copyOf := range tests {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			ns := cluster.Namespace(t)
			name := ns + ".down.datacache.kubeflow.org"
			here := &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}}
			admitted := cacheJob(ns, "admitted", table, tableEnv()...)
			cluster.Create(t, admitted)
			// Nothing listens at port 1.
			configuration := copyOf(t, metav1.ObjectMeta{Name: name}, here, admissionv1.WebhookClientConfig{URL: new("https://" + cluster.Address + ":1")})
			cluster.Create(t, configuration)
			t.Cleanup(func() {
				if err := cluster.Client.Delete(context.WithoutCancel(t.Context()), configuration); err != nil {
					t.Error(err)
				}
			})
			kubetest.Eventually(t, "the API server calls the webhook that is down", func() error {
				err := cluster.Client.Create(t.Context(), cacheJob(ns, "cached", table, tableEnv()...), client.DryRunAll)
				if err == nil || !strings.Contains(err.Error(), "failed calling webhook") || !strings.Contains(err.Error(), name) {
					return errors.Join(errors.New("a TrainJob with a cache is not refused for it"), err)
				}
				return nil
			})
			bare := cacheJob(ns, "bare", table)
			bare.Spec.Initializer = nil
			cluster.Create(t, bare)
			for _, job := range []*trainer.TrainJob{bare, admitted} {
				for _, suspend := range []bool{true, false} {
					change(t, job, func(j *trainer.TrainJob) { j.Spec.Suspend = &suspend })
				}
			}
		})
	}
}

func mutatingCopy(t *testing.T, copied metav1.ObjectMeta, here *metav1.LabelSelector, nowhere admissionv1.WebhookClientConfig) client.Object {
	t.Helper()
	ours := appears(t, &admissionv1.MutatingWebhookConfiguration{}, "", wellknown.Group)
	ours.ObjectMeta = copied
	for i := range ours.Webhooks {
		w := &ours.Webhooks[i]
		step, _, _ := strings.Cut(w.Name, ".") // names differ within a configuration
		w.Name, w.NamespaceSelector, w.ClientConfig = step+"."+copied.Name, here, nowhere
	}
	return ours
}

func validatingCopy(t *testing.T, copied metav1.ObjectMeta, here *metav1.LabelSelector, nowhere admissionv1.WebhookClientConfig) client.Object {
	t.Helper()
	ours := appears(t, &admissionv1.ValidatingWebhookConfiguration{}, "", wellknown.Group)
	ours.ObjectMeta = copied
	for i := range ours.Webhooks {
		w := &ours.Webhooks[i]
		step, _, _ := strings.Cut(w.Name, ".") // names differ within a configuration
		w.Name, w.NamespaceSelector, w.ClientConfig = step+"."+copied.Name, here, nowhere
	}
	return ours
}
