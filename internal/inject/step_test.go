// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/jobtest"
)

// withStep returns a runtime with our gate, whose step has variables and a placement.
func withStep(t *testing.T, env ...string) *request.Runtime {
	t.Helper()
	rt := twin(t, stock(t, "torch-distributed"))
	pod := &rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec
	pod.Containers[0].Env = append(pod.Containers[0].Env, variables(env...)...)
	pod.NodeSelector = map[string]string{"pool": "cpu"}
	pod.Tolerations = []corev1.Toleration{{Key: "cpu-only", Operator: corev1.TolerationOpExists}}
	return rt
}

func bare() *trainer.TrainJob {
	job := trainJob(table)
	job.Spec.Initializer = nil
	return job
}

func wants(job *trainer.TrainJob, rt *request.Runtime) bool {
	return request.Read(job, job.Namespace).Wants(rt)
}

// TestTableOfTheRuntime checks that a TrainJob that sets nothing gets the cache that its runtime names.
func TestTableOfTheRuntime(t *testing.T) {
	rt := withStep(t, "SCHEMA_NAME=demo", "TABLE_NAME=reviews", location, "CLUSTER_SIZE=4", "CACHE_IMAGE=registry.example/cache:1")
	job := bare()
	if parsed := request.Read(job, job.Namespace); parsed.Kind != request.Nothing || !parsed.Wants(rt) {
		t.Fatalf("kind %v, wants %t: want a cache by the runtime alone", parsed.Kind, parsed.Wants(rt))
	}
	asked, errs := validate(job, rt)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	arrow := asked.Cache.Arrow
	if arrow.Table != "demo.reviews" || arrow.DataNodes != 3 {
		t.Errorf("asked for %+v, want demo.reviews on 3 data nodes", arrow)
	}
	for name, template := range map[string]*v1alpha1.PodTemplate{"head": arrow.Head.Template, "node": arrow.DataNode.Template} {
		want := &v1alpha1.PodTemplate{Spec: &corev1.PodSpec{
			NodeSelector: map[string]string{"pool": "cpu"},
			Tolerations:  []corev1.Toleration{{Key: "cpu-only", Operator: corev1.TolerationOpExists}},
			Containers:   []corev1.Container{{Name: name, Image: "registry.example/cache:1"}},
		}}
		if diff := cmp.Diff(want, template); diff != "" {
			t.Errorf("the %s runs otherwise than the runtime says (-want +got):\n%s", name, diff)
		}
	}
	if refused := jobtest.DataCacheCRD(t).Refusals(t, asked.Cache); len(refused) > 0 {
		t.Errorf("the API refuses it: %v", refused)
	}
	expect(t, mutate(job, rt, Settings{}))
	if patchOf(job) < 0 {
		t.Error("training doesn't look for its cache's zone")
	}
}

// TestStepWithoutATable checks that a TrainJob whose runtime waits for a cache and that names no table is rejected.
func TestStepWithoutATable(t *testing.T) {
	other := trainJob("hf://org/dataset")
	for name, job := range map[string]*trainer.TrainJob{"no initializer": bare(), "another initializer": other} {
		t.Run(name, func(t *testing.T) {
			rt := withStep(t, location)
			if !wants(job, rt) {
				t.Fatal("is not seen to ask for a cache")
			}
			expect(t, refusalsOf(validate(job, rt)), []string{"spec.initializer.dataset.storageUri", "for which the step dataset-initializer of the runtime waits", "name a runtime without that step"})
		})
	}
	if without := stock(t, "torch-distributed"); wants(bare(), without) || wants(other, without) || wants(bare(), nil) {
		t.Error("TrainJobs on a runtime without our step are seen to ask for a cache")
	}
}

// TestImageOfAnotherStep checks that the image of another program's step is not used for caches.
func TestImageOfAnotherStep(t *testing.T) {
	rt := withStep(t, "CACHE_IMAGE=another/program")
	delete(rt.Labels, wellknown.LabelGate)
	if image := request.StepOf(rt).Image; image != "" {
		t.Errorf("caches would run %s", image)
	}
}

// TestTwinStaysWhereItsStepRan checks that a twin keeps the node selector and tolerations of the step that it replaces.
func TestTwinStaysWhereItsStepRan(t *testing.T) {
	source := withStep(t)
	spec, err := Twin(source.Spec, Gate{Image: image})
	if err != nil {
		t.Fatal(err)
	}
	got, want := request.SpecStep(spec), request.SpecStep(source.Spec)
	if diff := cmp.Diff(want.NodeSelector, got.NodeSelector); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(want.Tolerations, got.Tolerations); diff != "" {
		t.Error(diff)
	}
}
