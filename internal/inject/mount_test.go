// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	stdcmp "cmp"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/test/kit/stocktest"
)

var withStatus = Settings{StatusURL: "http://datacache-status.datacache-system.svc", Now: admitted.Now}

// TestFluidTrainJobs compares what admission makes of TrainJobs that name files with golden files.
func TestFluidTrainJobs(t *testing.T) {
	byHand := &v1alpha1.DataCache{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "pictures"},
		Spec:       v1alpha1.DataCacheSpec{Fluid: &v1alpha1.FluidCache{MountPath: "/pictures"}},
	}
	for name, tt := range map[string]struct {
		job       *trainer.TrainJob
		rt        *request.Runtime
		settings  func(*Settings)
		namespace string // "": the TrainJob's
	}{
		"uri":       {job: trainJob(files, "CACHE_QUOTA=4Gi", "MOUNT_PATH=/data"), rt: many(t)},
		"generated": {job: edited(trainJob(files, "CACHE_QUOTA=4Gi", "CACHE_NAME=pictures"), unnamed), rt: stock(t, "torch-distributed"), namespace: "team-b"},
		"reference": {job: trainJob("datacache://pictures"), rt: stock(t, "deepspeed-distributed"), settings: func(s *Settings) { s.Cache = byHand }},
	} {
		t.Run(name, func(t *testing.T) {
			settings := withStatus
			if tt.settings != nil {
				tt.settings(&settings)
			}
			if errs := Mutate(tt.job, request.Read(tt.job, stdcmp.Or(tt.namespace, tt.job.Namespace)), tt.rt, settings); len(errs) > 0 {
				t.Fatal(errs)
			}
			golden(t, filepath.Join("testdata", "fluid", name+".yaml"), header, tt.job)
			again := tt.job.DeepCopy()
			if errs := Mutate(again, request.Read(again, stdcmp.Or(tt.namespace, again.Namespace)), twin(t, tt.rt), settings); len(errs) > 0 {
				t.Fatal(errs)
			}
			if diff := cmp.Diff(tt.job, again); diff != "" {
				t.Errorf("a second admission changes it:\n%s", diff)
			}
		})
	}
}

func unnamed(job *trainer.TrainJob) { job.GenerateName, job.Name, job.Namespace = "train-", "", "" }

// many is a runtime with init containers, sidecars and a second job.
func many(t *testing.T) *request.Runtime {
	t.Helper()
	runtime := stock(t, "torch-distributed")
	runtime = &request.Runtime{Kind: runtime.Kind, Name: runtime.Name, Labels: runtime.Labels, Spec: runtime.Spec.DeepCopy()}
	jobs := &runtime.Spec.Template.Spec.ReplicatedJobs
	node := &(*jobs)[0].Template.Spec.Template.Spec
	node.InitContainers = []corev1.Container{{Name: "prepare", Image: "busybox"}}
	node.Containers = append(node.Containers, corev1.Container{Name: "metrics", Image: "busybox"})
	other := jobset.ReplicatedJob{Name: "observer"}
	other.Template.Spec.Template.Spec.Containers = []corev1.Container{{Name: "observer", Image: "busybox"}}
	*jobs = append(*jobs, other)
	return runtime
}

// TestFluidUpdatesAreRestored checks that a client which writes back the TrainJob as it created it does not take the files away.
func TestFluidUpdatesAreRestored(t *testing.T) {
	written := trainJob(files, "CACHE_QUOTA=4Gi")
	old := written.DeepCopy()
	if errs := mutate(old, stock(t, "torch-distributed"), withStatus); len(errs) > 0 {
		t.Fatal(errs)
	}
	if errs := Restore(written, old); len(errs) > 0 {
		t.Fatal(errs)
	}
	if diff := cmp.Diff(old, written); diff != "" {
		t.Errorf("the update changes it (-old +new):\n%s", diff)
	}
}

func TestCheckMount(t *testing.T) {
	runtime := many(t)
	containers := runtime.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers
	containers[1].VolumeMounts = []corev1.VolumeMount{{Name: "scratch", MountPath: "/data/"}}
	job := trainJob(files, "CACHE_QUOTA=4Gi", "MOUNT_PATH=/data")
	expect(t, CheckMount(request.Read(job, job.Namespace).MountField(), runtime, "/data"), []string{"env[1].value", `"/data"`, "scratch", "metrics", "MOUNT_PATH"})
	expect(t, CheckMount(request.Read(job, job.Namespace).MountField(), runtime, "/other"))
	runtime.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "datacache"}}
	expect(t, CheckMount(request.Read(job, job.Namespace).MountField(), runtime, "/other"), []string{"volume named datacache"})
}

// TestFluidStockRuntimes checks that the files reach every container of every stock runtime that has a twin.
func TestFluidStockRuntimes(t *testing.T) {
	for _, source := range stocktest.Runtimes(t) {
		rt := request.Cluster(source)
		if _, err := Twin(rt.Spec, Gate{}); err != nil {
			continue
		}
		job := trainJob(files, "CACHE_QUOTA=4Gi")
		if errs := mutate(job, rt, withStatus); len(errs) > 0 {
			t.Fatalf("%s: %v", source.Name, errs)
		}
		patched := map[string]int{}
		for _, each := range job.Spec.RuntimePatches[0].TrainingRuntimeSpec.Template.Spec.ReplicatedJobs {
			pod := each.Template.Spec.Template.Spec
			patched[each.Name] = len(pod.Containers) + len(pod.InitContainers)
		}
		for i := range rt.Spec.Template.Spec.ReplicatedJobs {
			each := &rt.Spec.Template.Spec.ReplicatedJobs[i]
			pod := &each.Template.Spec.Template.Spec
			if want := len(pod.Containers) + len(pod.InitContainers); !isInitializer(each) && patched[each.Name] != want {
				t.Errorf("%s: %d containers of %s mount the files, want %d", source.Name, patched[each.Name], each.Name, want)
			}
		}
	}
}
