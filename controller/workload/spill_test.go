// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/claim"
	"github.com/kubeflow/datacache/test/kit/cachetest"
)

// TestSpillVolumes checks the volume and the storage that a data node's pod asks for; a claim is in testdata/everything.yaml.
func TestSpillVolumes(t *testing.T) {
	t.Parallel()
	storage := func(text string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceEphemeralStorage: quantity(text)}
	}
	for name, c := range map[string]struct {
		spill  v1alpha1.Spill
		given  corev1.ResourceRequirements
		want   corev1.VolumeSource
		folder string
		asks   string // of ephemeral storage
	}{
		"the machine's disk": {
			spill: v1alpha1.Spill{Limit: quantity("10Gi")}, folder: "/var/lib/datacache/spill/rows", asks: "10496Mi",
			want: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(quantity("10496Mi"))}},
		},
		"beside what the user asks for": {
			spill: v1alpha1.Spill{Limit: quantity("10Gi")}, given: corev1.ResourceRequirements{Requests: storage("1Gi")}, folder: "/var/lib/datacache/spill/rows", asks: "11Gi",
			want: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(quantity("10496Mi"))}},
		},
		"a folder": {
			spill: v1alpha1.Spill{Limit: quantity("10Gi"), HostPath: &v1alpha1.SpillFolder{Path: "/mnt/nvme"}}, folder: "/var/lib/datacache/spill/team-a/reviews/$(COPY)", asks: "0",
			want: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/mnt/nvme", Type: new(corev1.HostPathDirectory)}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dc := cachetest.Minimal()
			dc.Spec.Arrow.Spill, dc.Spec.Arrow.DataNode.Resources = &c.spill, c.given
			set, err := LeaderWorkerSet(dc, Server{})
			if err != nil {
				t.Fatal(err)
			}
			pod := set.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec
			volume := pod.Volumes[len(pod.Volumes)-1]
			if diff := cmp.Diff(corev1.Volume{Name: "spill", VolumeSource: c.want}, volume); diff != "" {
				t.Errorf("the volume differs (-want +got):\n%s", diff)
			}
			resources := pod.Containers[0].Resources
			for _, list := range []corev1.ResourceList{resources.Requests, resources.Limits} {
				if got := list[corev1.ResourceEphemeralStorage]; got.Cmp(quantity(c.asks)) != 0 {
					t.Errorf("it asks for %s of ephemeral storage, want %s", got.String(), c.asks)
				}
			}
			env := map[string]string{}
			for _, v := range pod.Containers[0].Env {
				env[v.Name] = v.Value
			}
			if env["SPILL_DIR"] != c.folder || env["SPILL_LIMIT"] != "10737418240" {
				t.Errorf("the rows go to %s with the limit %s", env["SPILL_DIR"], env["SPILL_LIMIT"])
			}
			if head := set.Spec.LeaderWorkerTemplate.LeaderTemplate.Spec; len(head.Volumes) != 1 {
				t.Errorf("the head has the volumes %+v", head.Volumes)
			}
		})
	}
}

// TestSpillOnScratch checks that a template makes the claim a scratch volume, as docs/operate.md says.
func TestSpillOnScratch(t *testing.T) {
	t.Parallel()
	dc := cachetest.Minimal()
	dc.Spec.Arrow.Spill = &v1alpha1.Spill{Limit: quantity("10Gi"), Ephemeral: &v1alpha1.SpillClaim{}}
	marked := &corev1.PersistentVolumeClaimTemplate{}
	marked.Annotations = map[string]string{claim.Mark: claim.PerReplica}
	dc.Spec.Arrow.DataNode.Template = &v1alpha1.PodTemplate{Spec: &corev1.PodSpec{Volumes: []corev1.Volume{{
		Name: "spill", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: marked}},
	}}}}
	set, err := LeaderWorkerSet(dc, Server{})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range set.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Volumes {
		if value, ok := claim.Marked(&v); ok && value == claim.PerReplica && v.Ephemeral.VolumeClaimTemplate.Spec.Resources.Requests.Storage().Cmp(quantity("10Gi")) == 0 {
			return
		}
	}
	t.Errorf("no volume is a scratch volume of 10Gi: %+v", set.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Volumes)
}
