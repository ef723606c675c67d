// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
)

var mirrored = Settings{Now: admitted.Now, HubMirror: HubMirror{Endpoint: "http://mirror/hub", Audience: "objects"}}

const hubModel = "hf://acme/bert"

// fineTuning returns a TrainJob with a model and a data set of the hub.
func fineTuning(edits ...func(*trainer.TrainJob)) *trainer.TrainJob {
	job := trainJob("hf://acme/data", "A=1")
	job.Spec.RuntimeRef.Name = "torchtune-llama3.2-1b"
	job.Spec.Initializer.Model = &trainer.ModelInitializer{StorageUri: new(hubModel)}
	return edited(job, edits...)
}

// environments describes the variables of initializers and trainer as NAME=value, and the mounts of the token as JOB/CONTAINER.
func environments(job *trainer.TrainJob) map[string][]string {
	text := func(env []corev1.EnvVar) (all []string) {
		for _, v := range env {
			all = append(all, v.Name+"="+v.Value)
		}
		return all
	}
	got := map[string][]string{}
	if job.Spec.Initializer != nil && job.Spec.Initializer.Dataset != nil {
		got["dataset"] = text(job.Spec.Initializer.Dataset.Env)
	}
	if job.Spec.Initializer != nil && job.Spec.Initializer.Model != nil {
		got["model"] = text(job.Spec.Initializer.Model.Env)
	}
	if job.Spec.Trainer != nil {
		got["trainer"] = text(job.Spec.Trainer.Env)
	}
	for _, patch := range job.Spec.RuntimePatches {
		for _, each := range patch.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs {
			pod := each.Template.Spec.Template.Spec
			for _, c := range pod.Containers {
				for _, m := range c.VolumeMounts {
					has := slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool {
						return v.Name == m.Name && v.Projected != nil && v.Projected.Sources[0].ServiceAccountToken.Audience == "objects"
					})
					if has && m.MountPath == "/var/run/datacache-hub" {
						got["mounts"] = append(got["mounts"], each.Name+"/"+c.Name)
					}
				}
			}
		}
	}
	return got
}

func TestUseHub(t *testing.T) {
	t.Parallel()
	const endpoint, path = "HF_ENDPOINT=http://mirror/hub", "HF_TOKEN_PATH=/var/run/datacache-hub/token"
	for name, test := range map[string]struct {
		job  *trainer.TrainJob
		want map[string][]string
	}{
		"all parts": {fineTuning(), map[string][]string{
			"dataset": {"A=1", endpoint, path}, "model": {endpoint, path}, "trainer": {endpoint, path},
			"mounts": {"dataset-initializer/dataset-initializer", "model-initializer/model-initializer", "node/node"},
		}},
		"a user's own hub": {fineTuning(func(job *trainer.TrainJob) {
			job.Spec.Trainer = &trainer.Trainer{Env: variables("HF_ENDPOINT=https://mine")}
			job.Spec.Initializer.Model = nil
		}), map[string][]string{
			"dataset": {"A=1", endpoint, path}, "trainer": {"HF_ENDPOINT=https://mine"}, "mounts": {"dataset-initializer/dataset-initializer"},
		}},
		"tokens of their own": {fineTuning(func(job *trainer.TrainJob) {
			job.Spec.Trainer = &trainer.Trainer{Env: variables("HF_TOKEN=hf_x")}
			job.Spec.Initializer.Model.SecretRef = &corev1.LocalObjectReference{Name: "token"}
		}), map[string][]string{
			"dataset": {"A=1", endpoint, path}, "model": {endpoint}, "trainer": {"HF_TOKEN=hf_x", endpoint}, "mounts": {"dataset-initializer/dataset-initializer"},
		}},
		"a cache's request": {trainJob(table, location), map[string][]string{
			"dataset": {location}, "trainer": {endpoint, path}, "mounts": {"node/node"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rt := stock(t, test.job.Spec.RuntimeRef.Name)
			useMirror(test.job, rt, mirrored)
			if diff := cmp.Diff(test.want, environments(test.job)); diff != "" {
				t.Error(diff)
			}
			again := test.job.DeepCopy()
			useMirror(again, rt, mirrored)
			if diff := cmp.Diff(test.job, again); diff != "" {
				t.Errorf("a second time changes:\n%s", diff)
			}
		})
	}
}

func TestUseHubNeedsAMirror(t *testing.T) {
	t.Parallel()
	job := fineTuning()
	useMirror(job, stock(t, job.Spec.RuntimeRef.Name), admitted)
	useMirror(job, nil, mirrored)
	if diff := cmp.Diff(fineTuning(), job); diff != "" {
		t.Error(diff)
	}
}

// TestUseHubBesideACache checks that zone affinity and both mounts are in one entry of the patches.
func TestUseHubBesideACache(t *testing.T) {
	t.Parallel()
	job, rt := trainJob(table, location), stock(t, "torch-distributed")
	for range 2 { // admission may be called again
		if errs := mutate(job, rt, mirrored); len(errs) > 0 {
			t.Fatal(errs)
		}
		useMirror(job, rt, mirrored)
	}
	if len(job.Spec.RuntimePatches) != 1 {
		t.Fatalf("%d patches, want 1", len(job.Spec.RuntimePatches))
	}
	node := job.Spec.RuntimePatches[0].TrainingRuntimeSpec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec
	if node.Affinity == nil || len(node.Volumes) != 2 || len(node.Containers) != 1 || len(node.Containers[0].VolumeMounts) != 2 {
		t.Errorf("%+v, want affinity, and the volumes and mounts of the cache's credentials and of the hub's token", node)
	}
}

// TestUseHubBesideFiles checks that a job whose files Fluid caches has both mounts and both variables, also after it was written whole.
func TestUseHubBesideFiles(t *testing.T) {
	t.Parallel()
	settings := withStatus
	settings.HubMirror = mirrored.HubMirror
	written, rt := trainJob(files, "CACHE_QUOTA=4Gi"), stock(t, "torch-distributed")
	job := written.DeepCopy()
	if errs := mutate(job, rt, settings); len(errs) > 0 {
		t.Fatal(errs)
	}
	for range 2 { // admission may be called again
		useMirror(job, rt, settings)
	}
	node := job.Spec.RuntimePatches[0].TrainingRuntimeSpec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec
	if len(job.Spec.RuntimePatches) != 1 || len(node.Volumes) != 2 || len(node.Containers) != 1 || len(node.Containers[0].VolumeMounts) != 2 {
		t.Errorf("%+v, want the files' and the token's volume and mount", node)
	}
	if got := len(job.Spec.Trainer.Env); got != 3 {
		t.Errorf("the trainer has %d variables, want DATACACHE_NAME and those of the hub: %v", got, job.Spec.Trainer.Env)
	}
	if errs := Restore(written, job); len(errs) > 0 {
		t.Fatal(errs)
	}
	if diff := cmp.Diff(job, written); diff != "" {
		t.Errorf("after an update (-injected +written):\n%s", diff)
	}
}

// TestUseHubIsRestored checks that a client that writes the whole TrainJob, without our additions, changes nothing.
func TestUseHubIsRestored(t *testing.T) {
	t.Parallel()
	old := fineTuning()
	useMirror(old, stock(t, old.Spec.RuntimeRef.Name), mirrored)
	written := fineTuning()
	if errs := Restore(written, old); len(errs) > 0 {
		t.Fatal(errs)
	}
	if diff := cmp.Diff(old, written); diff != "" {
		t.Error(diff)
	}
	changed := fineTuning(func(job *trainer.TrainJob) { job.Spec.Initializer.Dataset.Env[0].Value = "2" })
	if errs := Restore(changed, old); len(errs) > 0 || strings.Contains(strings.Join(environments(changed)["dataset"], " "), "HF_") {
		t.Errorf("%v, %v, want a user's other change to stay as it is, for Trainer to judge", errs, environments(changed))
	}
}
