// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// TestUpstreamsCacheRuntime uses Trainer's own runtime torch-distributed-with-cache. Trainer alone rejects TrainJobs with a dataset
// on it, since its step has no volume for one (kubeflow/trainer v2.3.0 pkg/runtime/framework/plugins/jobset/jobset.go:137). With
// datacache such a TrainJob runs, with exactly one cache: upstream's initializer, which would create another one with the same names,
// does not run. The tests of package kubetest show that Trainer alone rejects cache:// too.
func TestUpstreamsCacheRuntime(t *testing.T) {
	t.Parallel()
	const name = "torch-distributed-with-cache"
	if err := cluster.InstallRuntimes(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	ns := cluster.Namespace(t)
	upstream := initializerImage(t, appears(t, &trainer.ClusterTrainingRuntime{}, "", name).Spec.Template.Spec)
	appears(t, &trainer.ClusterTrainingRuntime{}, "", wellknown.TwinName(name))

	alone := cacheJob(ns, "alone", "hf://not/ours")
	alone.Spec.RuntimeRef.Name = name
	if err := cluster.Client.Create(t.Context(), alone); err == nil || !strings.Contains(err.Error(), "must have volumeMount with name - initializer") {
		t.Errorf("without datacache creating it gives %v, want Trainer's refusal", err)
	}

	headsFollowPods(t, ns)
	job := cacheJob(ns, "train", table, tableEnv()...)
	job.Spec.RuntimeRef.Name = name
	cluster.Create(t, job)
	if job.Spec.RuntimeRef.Name != wellknown.TwinName(name) {
		t.Fatalf("the TrainJob runs on %s, want the twin", job.Spec.RuntimeRef.Name)
	}
	cluster.DataCache(t, ns, "train", v1alpha1.StateReady)
	made := appears(t, &jobset.JobSet{}, ns, "train")
	if got := initializerImage(t, made.Spec); got != image || got == upstream {
		t.Errorf("the step runs %s, want ours, %s", got, image)
	}
	trains(t, ns)
	onlyOurs(t, ns, upstream)
}

// initializerImage is the image of the step dataset-initializer.
func initializerImage(t *testing.T, spec jobset.JobSetSpec) string {
	t.Helper()
	for _, job := range spec.ReplicatedJobs {
		if job.Name == wellknown.StepName {
			return job.Template.Spec.Template.Spec.Containers[0].Image
		}
	}
	t.Fatalf("there is no job %s", wellknown.StepName)
	return ""
}

// trains waits until a pod of the training job is running.
func trains(t *testing.T, namespace string) {
	t.Helper()
	kubetest.Eventually(t, "training runs", func() error {
		var pods corev1.PodList
		if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(namespace), client.MatchingLabels{jobset.ReplicatedJobNameKey: wellknown.NodeName}); err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if pod.Status.Phase == corev1.PodRunning {
				return nil
			}
		}
		return fmt.Errorf("there are %d pods of it", len(pods.Items))
	})
}

// onlyOurs checks that there is no second cache and no upstream initializer that would create one.
func onlyOurs(t *testing.T, namespace, upstream string) {
	t.Helper()
	var sets lws.LeaderWorkerSetList
	var pods corev1.PodList
	for _, list := range []client.ObjectList{&sets, &pods} {
		if err := cluster.Client.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
	}
	if len(sets.Items) != 1 || sets.Items[0].Labels[wellknown.LabelCache] != "train" {
		t.Errorf("there are %d LeaderWorkerSets, want the one of the TrainJob's DataCache", len(sets.Items))
	}
	for _, pod := range pods.Items {
		if pod.Spec.Containers[0].Image == upstream {
			t.Errorf("pod %s runs upstream's initializer", pod.Name)
		}
	}
}
