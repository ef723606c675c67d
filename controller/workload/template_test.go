// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/cachetest"
)

// TestMergeTemplate checks that every field that users may set reaches the pods, and that no template can detach a pod from its
// cache.
func TestMergeTemplate(t *testing.T) {
	t.Parallel()
	dc := cachetest.Everything()
	ours := nodePod(dc, Server{Image: "image", Secrets: []corev1.LocalObjectReference{{Name: "platform"}}})
	before := ours.DeepCopy()
	got, err := mergeTemplate(ours, &v1alpha1.PodTemplate{
		Metadata: v1alpha1.PodMetadata{
			Labels:      map[string]string{"team": "a", wellknown.LabelRole: "impostor"},
			Annotations: map[string]string{"note": "x"},
		},
		Spec: &corev1.PodSpec{
			ServiceAccountName: "admin", SchedulerName: "gang", RuntimeClassName: new("gvisor"), PriorityClassName: "high",
			NodeSelector:     map[string]string{"pool": "memory"},
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "mine"}},
			SecurityContext:  &corev1.PodSecurityContext{FSGroup: new(int64(7))},
			Volumes:          []corev1.Volume{{Name: "ca"}},
			Containers: []corev1.Container{
				{
					Name: wellknown.RoleNode, Args: []string{"sh"},
					Env:          []corev1.EnvVar{{Name: envSecret, Value: "known"}, {Name: "SSL_CERT_DIR", Value: "/ca"}},
					VolumeMounts: []corev1.VolumeMount{{Name: "ca", MountPath: "/ca"}},
				},
				{Name: "sidecar", Image: "other"},
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, &ours); diff != "" {
		t.Errorf("our own template was changed (-before +after):\n%s", diff)
	}

	want := before
	want.Labels["team"] = "a"
	want.Annotations = map[string]string{"note": "x"}
	spec := &want.Spec
	spec.SchedulerName, spec.RuntimeClassName, spec.PriorityClassName = "gang", new("gvisor"), "high"
	spec.NodeSelector = map[string]string{"pool": "memory"}
	spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "mine"}, {Name: "platform"}}
	spec.SecurityContext.FSGroup = new(int64(7))
	spec.Volumes = append([]corev1.Volume{{Name: "ca"}}, spec.Volumes...)
	own := &spec.Containers[0]
	own.Env = append(own.Env, corev1.EnvVar{Name: "SSL_CERT_DIR", Value: "/ca"})
	own.VolumeMounts = append([]corev1.VolumeMount{{Name: "ca", MountPath: "/ca"}}, own.VolumeMounts...)
	spec.Containers = append(spec.Containers, corev1.Container{Name: "sidecar", Image: "other"})
	if diff := cmp.Diff(*want, got); diff != "" {
		t.Errorf("merged template differs (-want +got):\n%s", diff)
	}
}

// TestMergeTemplateWithoutContainers checks that a template without containers leaves ours unchanged.
func TestMergeTemplateWithoutContainers(t *testing.T) {
	t.Parallel()
	ours := headPod(cachetest.Minimal(), Server{Image: "image"})
	got, err := mergeTemplate(ours, &v1alpha1.PodTemplate{Spec: &corev1.PodSpec{SchedulerName: "gang"}})
	if err != nil {
		t.Fatal(err)
	}
	ours.Spec.SchedulerName = "gang"
	if diff := cmp.Diff(ours, got); diff != "" {
		t.Errorf("merged template differs (-want +got):\n%s", diff)
	}
}
