// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/internal/wellknown"
)

// written returns a TrainJob as its user wrote it, and as it is after admission.
func written(t *testing.T, namespace, name string) (theirs, admitted *trainer.TrainJob) {
	t.Helper()
	runtimes(t)
	theirs = cacheJob(namespace, name, table, tableEnv()...)
	theirs.Spec.Initializer.Dataset.SecretRef = &corev1.LocalObjectReference{Name: "keys"}
	admitted = theirs.DeepCopy()
	cluster.Create(t, admitted)
	if admitted.Spec.RuntimeRef.Name != "torch-distributed-data-cache" || admitted.Annotations[wellknown.AnnotationRuntime] != "torch-distributed" {
		t.Fatalf("the TrainJob runs on %s with annotations %v, want the twin, and the runtime that it named", admitted.Spec.RuntimeRef.Name, admitted.Annotations)
	}
	if admitted.Spec.Initializer.Dataset.SecretRef != nil || admitted.Annotations[wellknown.AnnotationSecret] != "keys" {
		t.Fatalf("the TrainJob's step gets the Secret, annotations are %v", admitted.Annotations)
	}
	if len(admitted.Spec.RuntimePatches) != 1 || admitted.Spec.RuntimePatches[0].Manager != wellknown.PatchManager {
		t.Fatalf("runtimePatches are %+v, want ours", admitted.Spec.RuntimePatches)
	}
	return theirs, admitted
}

// put replaces the whole TrainJob, as updates by the SDK and many operators do, with an object that lacks our additions.
func put(t *testing.T, theirs, before *trainer.TrainJob, suspend bool) *trainer.TrainJob {
	t.Helper()
	job := before.DeepCopy()
	change(t, job, func(now *trainer.TrainJob) {
		version := now.ResourceVersion
		theirs.DeepCopyInto(now)
		now.ResourceVersion, now.Spec.Suspend = version, &suspend
	})
	return job
}

// TestWholeWritesKeepTheCache checks that writing the TrainJob as it was before admission preserves what admission added.
func TestWholeWritesKeepTheCache(t *testing.T) {
	t.Parallel()
	theirs, admitted := written(t, cluster.Namespace(t), "train")
	for _, suspend := range []bool{false, true, false} {
		now := put(t, theirs, admitted, suspend)
		want := admitted.Spec.DeepCopy()
		want.Suspend = &suspend
		if diff := cmp.Diff(*want, now.Spec); diff != "" {
			t.Errorf("suspend=%v: the spec differs (-as admitted +as written again):\n%s", suspend, diff)
		}
		if diff := cmp.Diff(admitted.Annotations, now.Annotations); diff != "" {
			t.Errorf("suspend=%v: the annotations differ (-as admitted +as written again):\n%s", suspend, diff)
		}
	}
}

// TestKubectlApplyAgain checks that client-side and server-side kubectl apply accept the same file repeatedly.
func TestKubectlApplyAgain(t *testing.T) {
	t.Parallel()
	runtimes(t)
	admin, err := cluster.Kubeconfig("admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	for name, flags := range map[string][]string{"client": nil, "server": {"--server-side"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := cluster.Namespace(t)
			theirs := cacheJob(ns, name, table, tableEnv()...)
			theirs.APIVersion, theirs.Kind = trainer.GroupVersion.String(), trainer.TrainJobKind
			theirs.Spec.Initializer.Dataset.SecretRef = &corev1.LocalObjectReference{Name: "keys"}
			file, err := yaml.Marshal(theirs)
			if err != nil {
				t.Fatal(err)
			}
			var first *trainer.TrainJob
			for range 3 {
				cmd := exec.CommandContext(t.Context(), cluster.Kubectl(), append([]string{"--kubeconfig", admin, "apply", "-f", "-"}, flags...)...)
				cmd.Stdin = bytes.NewReader(file)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("kubectl apply %s: %v\n%s", strings.Join(flags, " "), err, out)
				}
				now := appears(t, &trainer.TrainJob{}, ns, name)
				if now.Spec.RuntimeRef.Name != "torch-distributed-data-cache" || now.Spec.Initializer.Dataset.SecretRef != nil {
					t.Errorf("the TrainJob lost what was added: runtimeRef %+v, dataset %+v", now.Spec.RuntimeRef, now.Spec.Initializer.Dataset)
				}
				if first == nil {
					first = now
				}
				if diff := cmp.Diff(first.Spec, now.Spec); diff != "" {
					t.Errorf("the spec differs (-applied once +again):\n%s", diff)
				}
			}
		})
	}
}

// TestCacheIsForLife checks that a TrainJob keeps the cache that it was created with, and that none can be added later.
func TestCacheIsForLife(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	_, cached := written(t, ns, "cached")
	bare := cacheJob(ns, "bare", table)
	bare.Spec.Initializer = nil
	cluster.Create(t, bare)
	tests := map[string]struct {
		job  *trainer.TrainJob
		edit func(*trainer.TrainJob)
	}{
		"taken away": {cached, func(j *trainer.TrainJob) { j.Spec.Initializer = nil }},
		"replaced":   {cached, func(j *trainer.TrainJob) { j.Spec.Initializer.Dataset.StorageUri = new("hf://x/y") }},
		"added": {bare, func(j *trainer.TrainJob) {
			j.Spec.Initializer = cacheJob(ns, "", table, tableEnv()...).Spec.Initializer
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			job := tt.job.DeepCopy()
			tt.edit(job)
			err := cluster.Client.Patch(t.Context(), job, client.MergeFrom(tt.job)) // unlike an update, it can't conflict with Trainer's own writes
			if err == nil || !strings.Contains(err.Error(), "spec.initializer.dataset: Forbidden: can't be added, taken away or changed") {
				t.Errorf("the update gives %v, want it forbidden", err)
			}
		})
	}
}

// TestOtherTrainJobsAreNotTouched checks that TrainJobs without a cache are stored unchanged.
func TestOtherTrainJobsAreNotTouched(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	job := cacheJob(ns, "train", table)
	job.Spec.Initializer = nil
	cluster.Create(t, job)
	change(t, job, func(j *trainer.TrainJob) { j.Spec.Suspend = new(true) })
	if job.Spec.RuntimeRef.Name != "torch-distributed" || len(job.Annotations) > 0 || len(job.Spec.RuntimePatches) > 0 {
		t.Errorf("the TrainJob has runtimeRef %+v, annotations %v, runtimePatches %+v, want nothing of ours", job.Spec.RuntimeRef, job.Annotations, job.Spec.RuntimePatches)
	}
}
