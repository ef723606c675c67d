// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// namespaced creates a TrainingRuntime from the stock runtime.
func namespaced(t *testing.T, namespace, name string) *trainer.TrainingRuntime {
	t.Helper()
	runtimes(t)
	stock := appears(t, &trainer.ClusterTrainingRuntime{}, "", "torch-distributed")
	runtime := &trainer.TrainingRuntime{Spec: stock.Spec}
	runtime.Namespace, runtime.Name = namespace, name
	runtime.Labels = map[string]string{"trainer.kubeflow.org/framework": "torch"}
	cluster.Create(t, runtime)
	return runtime
}

// hears waits for an event on the runtime.
func hears(t *testing.T, runtime *trainer.TrainingRuntime, reason, part string) {
	t.Helper()
	kubetest.Eventually(t, fmt.Sprintf("event %s of %s", reason, runtime.Name), func() error {
		var events corev1.EventList
		if err := cluster.Client.List(t.Context(), &events, client.InNamespace(runtime.Namespace)); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Name == runtime.Name && e.Reason == reason && strings.Contains(e.Message, part) {
				return nil
			}
		}
		return fmt.Errorf("not among %d events", len(events.Items))
	})
}

func TestTwinFollowsItsSource(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	runtime := namespaced(t, ns, "torch")
	twin := appears(t, &trainer.TrainingRuntime{}, ns, "torch-data-cache")
	if !request.HasGate(twin.Labels, &twin.Spec) || twin.Labels["trainer.kubeflow.org/framework"] != "torch" {
		t.Errorf("the twin has no gate or lost its source's labels: %v", twin.Labels)
	}

	change(t, runtime, func(r *trainer.TrainingRuntime) { r.Spec.MLPolicy.NumNodes = new(int32(7)) })
	kubetest.Eventually(t, "the twin follows", func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(twin), twin); err != nil {
			return err
		}
		if n := *twin.Spec.MLPolicy.NumNodes; n != 7 {
			return fmt.Errorf("numNodes is %d, want 7", n)
		}
		return nil
	})

	job := cacheJob(ns, "train", "cache://demo/reviews", tableEnv()...)
	job.Spec.RuntimeRef = trainer.RuntimeRef{Kind: new("TrainingRuntime"), Name: "torch"}
	cluster.Create(t, job)
	if job.Spec.RuntimeRef.Name != "torch-data-cache" {
		t.Fatalf("the TrainJob runs on %s, want the twin", job.Spec.RuntimeRef.Name)
	}
	change(t, runtime, func(r *trainer.TrainingRuntime) { r.Labels[wellknown.LabelDerive] = "false" })
	// The marker is reconciled after the twin: so the twin was left unchanged, and not just not reconciled yet.
	marker := namespaced(t, ns, "marker")
	appears(t, &trainer.TrainingRuntime{}, ns, "marker-data-cache")
	if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(twin), twin); err != nil {
		t.Errorf("a twin that a TrainJob names is gone: %v", err)
	}
	cluster.Delete(t, job)
	cluster.Vanish(t, &trainer.TrainingRuntime{}, ns, "torch-data-cache")

	cluster.Delete(t, marker)
	cluster.Vanish(t, &trainer.TrainingRuntime{}, ns, "marker-data-cache")
}

func TestTwinThatCannotBe(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	theirs := namespaced(t, ns, "torch-data-cache")
	change(t, theirs, func(r *trainer.TrainingRuntime) { r.Labels[wellknown.LabelDerive] = "false" })
	before := theirs.DeepCopy()
	source := namespaced(t, ns, "torch")
	hears(t, source, "CacheTwinNameTaken", "torch-data-cache exists and is not this one's twin")
	appears(t, theirs, ns, "torch-data-cache")
	if diff := cmp.Diff(before, theirs); diff != "" {
		t.Errorf("the foreign runtime was changed (-before +after):\n%s", diff)
	}
	cluster.Delete(t, theirs)
	kubetest.Eventually(t, "the name is free and the twin there", func() error {
		twin := &trainer.TrainingRuntime{}
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(theirs), twin); err != nil {
			return err
		}
		if twin.Annotations[wellknown.AnnotationTwinOf] != "torch" {
			return errors.New("it is not torch's twin")
		}
		return nil
	})

	inOrder := namespaced(t, ns, "in-order")
	change(t, inOrder, func(r *trainer.TrainingRuntime) {
		r.Spec.Template.Spec.StartupPolicy = &jobset.StartupPolicy{StartupPolicyOrder: jobset.InOrder}
	})
	hears(t, inOrder, "NoCacheTwin", "startupPolicy is InOrder")
}
