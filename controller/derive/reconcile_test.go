// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/controller/podstate"
)

// TestReconcile follows a step through the changes of its DataCache. The Job's own life is in test/e2e.
func TestReconcile(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, batchv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	dc, job := theCache(), &batchv1.Job{}
	key := client.ObjectKey{Namespace: dc.Namespace, Name: jobName(dc)}
	foreign := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	api := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(dc).WithObjects(dc, foreign).Build()
	r := &Reconciler{kube.Applier{Client: api, Live: api}, &podstate.Warnings{Live: fake.NewClientBuilder().WithScheme(scheme).WithIndex(&corev1.Event{}, "type", func(client.Object) []string { return nil }).Build(), Now: time.Now}, time.Now}
	spec := func(change func()) func() error {
		return func() error { change(); return api.Update(t.Context(), dc) }
	}
	status := func(change func()) func() error {
		return func() error { change(); return api.Status().Update(t.Context(), dc) }
	}
	for _, step := range []struct {
		name            string
		change          func() error
		command, reason string // of the Job and of the condition; "" if there is none
	}{
		{"the cache loads", status(func() { dc.Status.State = v1alpha1.StateLoading }), "theirs", ""},
		{"somebody else's Job", status(func() { dc.Status.State = v1alpha1.StateReady }), "theirs", "NameTaken"},
		{"it is gone", func() error { return api.Delete(t.Context(), foreign) }, "tok.py", "Deriving"},
		{"another command, the Job goes", spec(func() { dc.Spec.Arrow.Derive.Command[1] = "other.py" }), "", "Deriving"},
		{"and comes", nil, "other.py", "Deriving"},
		{"nothing changes", nil, "other.py", "Deriving"},
		{"a data node is lost", status(func() { dc.Status.State = v1alpha1.StateDegraded }), "other.py", "Deriving"},
		{"released", status(func() { dc.Status.State = v1alpha1.StateReleased }), "", ""},
		{"wanted again", status(func() { dc.Status.State = v1alpha1.StateReady }), "other.py", "Deriving"},
		{"no step any more", spec(func() { dc.Spec.Arrow.Derive = nil }), "", ""},
	} {
		if step.change != nil {
			if err := step.change(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(dc)}); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(dc), dc); err != nil {
			t.Fatal(err)
		}
		command, reason := "", ""
		if err := api.Get(t.Context(), key, job); err == nil {
			command = "theirs"
			if metav1.IsControlledBy(job, dc) {
				command = job.Spec.Template.Spec.Containers[0].Command[1]
			}
		}
		if c := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionDerived); c != nil {
			reason = c.Reason
		}
		if command != step.command || reason != step.reason {
			t.Errorf("%s: the Job runs %q and the condition is %q, want %q and %q", step.name, command, reason, step.command, step.reason)
		}
	}
}
