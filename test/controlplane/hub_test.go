// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"slices"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/internal/inject"
	"github.com/kubeflow/datacache/internal/request"
)

// TestHubMirror checks that the stock Trainer accepts a TrainJob that admission made use a mirror of the hub, and builds initializers and
// trainer with it; and that a client that writes the TrainJob as it knows it is no obstacle.
func TestHubMirror(t *testing.T) {
	t.Parallel()
	const name = "torchtune-llama3.2-1b"
	if err := cluster.InstallRuntimes(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	runtime := appears(t, &trainer.ClusterTrainingRuntime{}, "", name)
	ns := cluster.Namespace(t)
	job := &trainer.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "tune"}, Spec: trainer.TrainJobSpec{
		RuntimeRef: trainer.RuntimeRef{Name: name},
		Initializer: &trainer.Initializer{
			Dataset: &trainer.DatasetInitializer{StorageUri: new("hf://acme/data")}, Model: &trainer.ModelInitializer{StorageUri: new("hf://acme/bert")},
		},
		Suspend: new(true),
	}}
	known := job.DeepCopy()
	inject.UseHub(job, request.Nothing, request.Cluster(runtime), inject.Settings{Now: metav1.Now(), HubMirror: inject.HubMirror{Endpoint: "http://mirror/hub", Audience: "objects"}})
	cluster.Create(t, job)
	made := appears(t, &jobset.JobSet{}, ns, "tune")
	seen := 0
	for _, replicated := range made.Spec.ReplicatedJobs {
		pod := replicated.Template.Spec.Template.Spec
		for _, c := range pod.Containers {
			seen++
			if !has(c.Env, "HF_ENDPOINT", "http://mirror/hub") || !has(c.Env, "HF_TOKEN_PATH", "/var/run/datacache-hub/token") {
				t.Errorf("%s/%s has environment %v", replicated.Name, c.Name, c.Env)
			}
			mounted := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "datacache-hub-token" })
			isThere := slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool {
				return v.Name == "datacache-hub-token" && v.Projected.Sources[0].ServiceAccountToken.Audience == "objects"
			})
			if !mounted || !isThere {
				t.Errorf("%s/%s: token mounted %v, volume there %v", replicated.Name, c.Name, mounted, isThere)
			}
		}
	}
	if seen != 3 {
		t.Errorf("%d containers, want those of two initializers and the trainer", seen)
	}
	written := &trainer.TrainJob{}
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error { // Trainer writes the status meanwhile
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
			return err
		}
		written = known.DeepCopy()
		written.ResourceVersion, written.Spec.RuntimeRef, written.Spec.Suspend = job.ResourceVersion, job.Spec.RuntimeRef, new(false)
		return cluster.Client.Update(t.Context(), written)
	})
	if err != nil {
		t.Fatalf("a client that writes the whole TrainJob: %v", err)
	}
	if len(written.Spec.RuntimePatches) != 1 || written.Spec.Trainer == nil || !has(written.Spec.Trainer.Env, "HF_ENDPOINT", "http://mirror/hub") {
		t.Errorf("after its write the TrainJob is %+v", written.Spec)
	}
}

func has(env []corev1.EnvVar, name, value string) bool {
	return slices.Contains(env, corev1.EnvVar{Name: name, Value: value})
}
