// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/test/kit/deadline"
)

// Deadline is the time limit of waits on an idle machine, beside those of Eventually.
const Deadline = 5 * time.Minute

// Eventually calls check until it returns nil. At the time limit it fails the test with the last error. It logs how long it took.
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	eventually(t, deadline.Start(), what, check)
}

// EventuallyLong is Eventually for long work, with its own time limit on an idle machine.
func EventuallyLong(t testing.TB, idle time.Duration, what string, check func() error) {
	t.Helper()
	eventually(t, deadline.StartLong(idle), what, check)
}

func eventually(t testing.TB, wait *deadline.Wait, what string, check func() error) {
	t.Helper()
	began := time.Now()
	wait.Eventually(t, func() error {
		if err := check(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
	t.Logf("waited %5.1f s for %s", time.Since(began).Seconds(), what)
}

// Namespace creates a namespace for the test and returns its name; it is deleted at the end of the test. If the test has failed, the
// namespace's pods and events, and the managers' log lines about it, are logged.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	if err := c.processes.check(); err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	if err := c.Client.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	name := namespace.Name
	ctx := context.WithoutCancel(t.Context()) // t.Context() is canceled before cleanup
	t.Cleanup(func() {
		if t.Failed() {
			c.explain(ctx, t, name)
		}
		c.Kubelet.Play(name, nil)
		if err := c.Client.Delete(ctx, namespace); err != nil {
			t.Errorf("deleting the test's namespace: %v", err)
		}
	})
	Eventually(t, "the default service account of "+name, func() error {
		return c.Client.Get(t.Context(), client.ObjectKey{Namespace: name, Name: "default"}, &corev1.ServiceAccount{})
	})
	return name
}

// explain logs what may show why a test failed.
func (c *Cluster) explain(ctx context.Context, t testing.TB, namespace string) {
	Explain(ctx, t, c.Client, namespace)
	if err := c.processes.check(); err != nil {
		t.Log(err)
	}
	for _, m := range c.managers {
		t.Logf("%s said of %s:\n%s", m.name, namespace, m.tail(30, namespace))
	}
}

// Explain logs the pods and events of a namespace.
func Explain(ctx context.Context, t testing.TB, c client.Client, namespace string) {
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		t.Log(err)
	}
	for _, pod := range pods.Items {
		t.Logf("pod %s on %q: %s %s", pod.Name, pod.Spec.NodeName, pod.Status.Phase, pod.Status.Message)
	}
	var events corev1.EventList
	if err := c.List(ctx, &events, client.InNamespace(namespace)); err != nil {
		t.Log(err)
	}
	for _, e := range events.Items {
		t.Logf("event %s %s/%s: %s: %s", e.Type, e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
	}
}
