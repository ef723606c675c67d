// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/workload"
	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/cachetest"
)

// TestOwnCacheFollowsItsJob checks that the pods have the labels that the job's training pods select, and the image and placement
// that the job's runtime sets.
func TestOwnCacheFollowsItsJob(t *testing.T) {
	t.Parallel()
	job := trainJob()
	job.Annotations = map[string]string{wellknown.AnnotationPlacement: "uid-1"}
	asked := &request.Request{Cache: *cachetest.Minimal().Spec.DeepCopy()}
	for container, settings := range map[string]*v1alpha1.PodSettings{wellknown.RoleHead: &asked.Cache.Arrow.Head, wellknown.RoleNode: &asked.Cache.Arrow.DataNode} {
		settings.Template = &v1alpha1.PodTemplate{Spec: &corev1.PodSpec{
			NodeSelector: map[string]string{"pool": "cpu"}, Containers: []corev1.Container{{Name: container, Image: "registry.example/cache:1"}},
		}}
	}
	set, err := workload.LeaderWorkerSet(ownCache(job, asked), workload.Server{Image: "the platform's"})
	if err != nil {
		t.Fatal(err)
	}
	for role, pod := range map[string]*corev1.PodTemplateSpec{
		wellknown.RoleHead: set.Spec.LeaderWorkerTemplate.LeaderTemplate, wellknown.RoleNode: &set.Spec.LeaderWorkerTemplate.WorkerTemplate,
	} {
		if got := pod.Labels[wellknown.LabelPlacement]; got != "uid-1" {
			t.Errorf("the %s has placement %q", role, got)
		}
		if c := pod.Spec.Containers; len(c) != 1 || c[0].Image != "registry.example/cache:1" || len(c[0].Args) != 1 || pod.Spec.NodeSelector["pool"] != "cpu" {
			t.Errorf("the %s runs %+v on %v, want the runtime's image on its nodes", role, c, pod.Spec.NodeSelector)
		}
	}

	job.Annotations[wellknown.AnnotationPlacement] = "no label's value!"
	if dc := ownCache(job, asked); dc.Labels[wellknown.LabelPlacement] != "" {
		t.Errorf("labels %v: the API server would refuse them", dc.Labels)
	}
}
