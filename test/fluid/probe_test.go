// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package fluid

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	fluidapi "github.com/fluid-cloudnative/fluid/api/v1alpha1"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// refusal is what the program probe writes when the storage refuses the keys.
const refusal = "error: read folder /files/files: permission denied"

// mountFails checks a cache whose files no pod can list: its first job fails in its step, which says why, without any pod that trains. When they can
// be listed, the cache becomes Ready by the next try of the same probe.
func mountFails(t *testing.T) {
	ns := cluster.Namespace(t)
	var allowed, trains atomic.Bool
	log := waits(t, ns, func(pod *corev1.Pod) kubetest.Act {
		switch {
		case !isProbe(pod):
			trains.Store(true)
		case !allowed.Load():
			return kubetest.Act{Exit: new(int32(1)), Log: refusal, Message: refusal}
		}
		return kubetest.Act{}
	})
	cluster.Create(t, thinCache(ns, "files", "s3://bucket/files"))
	becomes(t, ns, "files", "NotMounted", "the files can't be mounted on node node-", "pod files-probe-", refusal)
	job := fileJob(ns, "train", "READY_TIMEOUT", "5s")
	job.Spec.Initializer.Dataset.StorageUri = new("datacache://files")
	job.Spec.Initializer.Dataset.Env = []corev1.EnvVar{{Name: "READY_TIMEOUT", Value: "5s"}}
	cluster.Create(t, job)
	cluster.Become(t, job, ns, "train", "failed", func() error {
		if !meta.IsStatusConditionTrue(job.Status.Conditions, trainer.TrainJobFailed) {
			return fmt.Errorf("its conditions are %+v", job.Status.Conditions)
		}
		return nil
	})
	if text := log("train"); !strings.Contains(text, "the files can't be mounted on node node-") || !strings.Contains(text, refusal) {
		t.Errorf("the step said:\n%s", text)
	}
	if trains.Load() {
		t.Error("a pod trained without its files")
	}
	allowed.Store(true)
	cluster.DataCache(t, ns, "files", v1alpha1.StateReady)
	cluster.Delete(t, &v1alpha1.DataCache{ObjectMeta: thinCache(ns, "files", "").ObjectMeta})
	cluster.Vanish(t, &fluidapi.Dataset{}, ns, "files")
	cluster.Vanish(t, &batchv1.Job{}, ns, "files-probe")
}

// probesWhereItTrains checks that the probe asks for the nodes that the job's pods ask for, and that a probe that no node takes does not keep the job
// from its files.
func probesWhereItTrains(t *testing.T) {
	ns := newNamespace(t)
	job := fileJob(ns, "train", "CACHE_NAME", "files")
	selector := map[string]string{corev1.LabelTopologyZone: "zone-b"}
	job.Spec.RuntimePatches = []trainer.RuntimePatch{{
		Manager: "example.com/test",
		TrainingRuntimeSpec: &trainer.TrainingRuntimeSpecPatch{Template: &trainer.JobSetTemplatePatch{Spec: &trainer.JobSetSpecPatch{
			ReplicatedJobs: []trainer.ReplicatedJobPatch{{Name: "node", Template: &trainer.JobTemplatePatch{Spec: &trainer.JobSpecPatch{
				Template: &trainer.PodTemplatePatch{Spec: &trainer.PodSpecPatch{NodeSelector: selector}},
			}}}},
		}}},
	}}
	cluster.Create(t, job)
	probe := &batchv1.Job{}
	cluster.Appear(t, probe, ns, "files-probe")
	if got := probe.Spec.Template.Spec.NodeSelector; fmt.Sprint(got) != fmt.Sprint(selector) {
		t.Errorf("the probe asks for nodes with %v, want those of the job: %v", got, selector)
	}
	cluster.DataCache(t, ns, "files", v1alpha1.StateReady)
}

// alluxioImage is what Fluid's chart names, and can't be had where the tests run.
const alluxioImage = "alluxio/alluxio-dev:2.9.0"

// alluxioStarts follows a cache of Alluxio as far as it comes without its image: Fluid's own controller makes the StatefulSets, and the cache and the
// step say which pod lacks which image.
func alluxioStarts(t *testing.T) {
	ns := cluster.Namespace(t)
	log := waits(t, ns, func(pod *corev1.Pod) kubetest.Act {
		if image := pod.Spec.Containers[0].Image; strings.HasPrefix(image, "alluxio/") {
			return kubetest.Act{Waiting: "ImagePullBackOff", Message: fmt.Sprintf("Back-off pulling image %q", image)} // as the kubelet says it
		}
		return kubetest.Act{}
	})
	cluster.Create(t, fileJob(ns, "train", "CACHE_RUNTIME", "Alluxio", "CACHE_PROFILE", "", "CACHE_QUOTA", "1Gi", "CACHE_NAME", "files"))
	said := []string{"pod files-master-0", `Back-off pulling image "` + alluxioImage + `"`}
	becomes(t, ns, "files", "ImagePullBackOff", said...)
	for name, pods := range map[string]int32{"files-master": 1, "files-worker": 0} { // Fluid adds workers when the master runs
		set := &appsv1.StatefulSet{}
		cluster.Appear(t, set, ns, name)
		if *set.Spec.Replicas != pods {
			t.Errorf("StatefulSet %s has %d pods, want %d", name, *set.Spec.Replicas, pods)
		}
	}
	kubetest.Eventually(t, "the step to say so", func() error {
		for _, part := range said {
			if text := log("train"); !strings.Contains(text, part) {
				return fmt.Errorf("it said:\n%s", text)
			}
		}
		return nil
	})
}
