// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/engine"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/cachetest"
)

// TestNoEventStorm checks how often a TrainJob that waits is looked at, and that its events become rare, although what it waits for
// changes each time.
func TestNoEventStorm(t *testing.T) {
	t.Parallel()
	job, twin := waitingJob()
	dc := cachetest.Minimal()
	dc.Name = job.Name
	dc.Status.Users = 1
	dc.Status.State = v1alpha1.StateReady
	setConditions(&dc.Status, engine.Condition{State: v1alpha1.StateReady, Reason: engine.ReasonLoaded, Message: "all rows"}, 1, cachetest.Noon)
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	objects := fake.NewClientBuilder().WithScheme(scheme).WithObjects(job, twin, dc).WithStatusSubresource(job).Build()
	now, said := cachetest.Noon.Time, record.NewFakeRecorder(1000)
	r := &progressReconciler{
		client: objects, reader: objects, events: newEventRecorder(said), waits: newSentences(), changed: make(chan event.GenericEvent, 1000),
		now: func() time.Time { return now }, patience: defaultPatience,
	}
	reconcile := func() time.Duration {
		t.Helper()
		result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(job)})
		if err != nil {
			t.Fatal(err)
		}
		return result.RequeueAfter
	}
	if pause := reconcile(); pause != defaultPatience || len(said.Events) > 0 {
		t.Fatalf("at first it is looked at again after %v, with %d events, want %v and none", pause, len(said.Events), defaultPatience)
	}
	looks := 0
	for end := cachetest.Noon.Add(time.Hour); now.Before(end); looks++ {
		now = now.Add(reconcile())
		for range 3 { // events of its Jobs and caches come besides
			reconcile()
		}
		if len(said.Events) > int(now.Sub(cachetest.Noon.Time)/longestWait)+5 {
			t.Fatalf("%d events within %v", len(said.Events), now.Sub(cachetest.Noon.Time))
		}
		set := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: job.Name}}
		if looks%2 == 0 {
			if err := objects.Create(t.Context(), set); err != nil {
				t.Fatal(err)
			}
		} else if err := objects.Delete(t.Context(), set); err != nil {
			t.Fatal(err)
		}
	}
	if looks > 40 || len(said.Events) < 10 {
		t.Errorf("%d looks and %d events in an hour, want at most 40 looks, and an event for most changes", looks, len(said.Events))
	}
	if got := r.waits.of(client.ObjectKeyFromObject(job)); got == "" {
		t.Error("its caches are told nothing")
	}

	job.Status.JobsStatus = []trainer.JobStatus{{Name: "node", Ready: new(int32(1)), Succeeded: new(int32(0)), Failed: new(int32(0)), Active: new(int32(1)), Suspended: new(int32(0))}}
	if err := objects.Status().Update(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	reconcile()
	left := 0
	r.looks.Range(func(any, any) bool { left++; return true })
	if got := r.waits.of(client.ObjectKeyFromObject(job)); got != "" || left > 0 {
		t.Errorf("a TrainJob that trains waits for %q, and %d looks are kept", got, left)
	}
}

// waitingJob returns a TrainJob with a cache, and its runtime.
func waitingJob() (*trainer.TrainJob, *trainer.ClusterTrainingRuntime) {
	step := jobset.ReplicatedJob{Name: wellknown.StepName}
	step.Template.Spec.Template.Spec.Containers = []corev1.Container{{Name: wellknown.StepName}}
	twin := &trainer.ClusterTrainingRuntime{ObjectMeta: metav1.ObjectMeta{Name: "torch-data-cache", Labels: map[string]string{wellknown.LabelGate: "true"}}}
	twin.Spec.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{step}
	job := trainJob()
	job.Spec.RuntimeRef = trainer.RuntimeRef{Name: twin.Name}
	job.Spec.Initializer = &trainer.Initializer{Dataset: &trainer.DatasetInitializer{StorageUri: new("cache://demo/reviews")}}
	return job, twin
}
