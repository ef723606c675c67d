// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/test/kit/kubetest"
)

const (
	deadline       = 10 * time.Minute // for every wait: what takes seconds on an idle machine may take long on a busy one
	storeNamespace = "object-store"
	storeSecret    = "store" // name in storeNamespace, and in every test's namespace
)

// await waits until check returns nil.
func await(t *testing.T, what string, check func() error) {
	t.Helper()
	kubetest.EventuallyLong(t, deadline, what, check)
}

// namespace creates a namespace with the keys of the object store, and deletes it at the end of the test.
func namespace(t *testing.T) string {
	t.Helper()
	needsCluster(t)
	made := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}}
	cluster.Create(t, made)
	ctx := context.WithoutCancel(t.Context()) // t.Context() is canceled before cleanup
	t.Cleanup(func() {
		if t.Failed() {
			kubetest.Explain(ctx, t, cluster.Client, made.Name)
		}
		if err := cluster.Client.Delete(ctx, made); err != nil {
			t.Errorf("deleting the test's namespace: %v", err)
		}
	})
	cluster.Create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: made.Name, Name: storeSecret}, Data: storeKeys(t)})
	await(t, "datacache's webhook to answer", func() error { return webhookAnswers(t, made.Name) })
	return made.Name
}

// webhookAnswers returns an error while TrainJobs with a cache can't be created because the manager is unavailable, as after some
// tests. It tries to create one that must be rejected, so none is created.
func webhookAnswers(t *testing.T, namespace string) error {
	t.Helper()
	job := &trainer.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "nothing"},
		Spec: trainer.TrainJobSpec{
			RuntimeRef:  trainer.RuntimeRef{Name: "torch-distributed"},
			Initializer: &trainer.Initializer{Dataset: &trainer.DatasetInitializer{StorageUri: new("cache://no-table")}},
		},
	}
	err := cluster.Client.Create(t.Context(), job, client.DryRunAll)
	switch {
	case err == nil:
		return errors.New("a TrainJob with a wrong storageUri was taken")
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err):
		return nil
	}
	return fmt.Errorf("a TrainJob with a wrong storageUri got no refusal: %w", err)
}

// storeKeys returns the variables for reaching the object store from within the cluster.
func storeKeys(t *testing.T) map[string][]byte {
	t.Helper()
	keys := &corev1.Secret{}
	if err := cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: storeNamespace, Name: storeSecret}, keys); err != nil {
		t.Fatal(err)
	}
	return keys.Data
}

// appears waits for an object and reads it.
func appears[T client.Object](t *testing.T, object T, namespace, name string) T {
	t.Helper()
	cluster.Appear(t, object, namespace, name)
	return object
}
