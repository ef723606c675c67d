// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package fluid

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	fluidapi "github.com/fluid-cloudnative/fluid/api/v1alpha1"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// severalSources follows a TrainJob whose files are of two places: one Dataset has both, each as a folder of its own, the probe lists both before
// the job may train, and the job mounts one claim.
func severalSources(t *testing.T) {
	ns := newNamespace(t)
	log := waits(t, ns, func(*corev1.Pod) kubetest.Act { return kubetest.Act{} })
	dc := thinCache(ns, "both", "s3://bucket/images")
	dc.Spec.Fluid.Mounts = []v1alpha1.FluidMount{
		{Name: "images", MountPoint: "s3://bucket/images"}, {Name: "labels", MountPoint: "https://labels.example.com/v1", Path: "/meta/labels"},
	}
	cluster.Create(t, dc)
	job := fileJob(ns, "train")
	job.Spec.Initializer.Dataset = &trainer.DatasetInitializer{StorageUri: new("datacache://both")}
	cluster.Create(t, job)
	cluster.DataCache(t, ns, "both", v1alpha1.StateReady)
	set := &fluidapi.Dataset{}
	cluster.Appear(t, set, ns, "both")
	var mounts []string
	for _, m := range set.Spec.Mounts {
		mounts = append(mounts, m.MountPoint+" at "+m.Path)
	}
	if want := []string{"s3://bucket/images at ", "https://labels.example.com/v1 at /meta/labels"}; !slices.Equal(mounts, want) {
		t.Errorf("the Dataset mounts %q, want %q", mounts, want)
	}
	probe := &batchv1.Job{}
	cluster.Appear(t, probe, ns, "both-probe")
	if args := probe.Spec.Template.Spec.Containers[0].Args; !slices.Equal(args, []string{"probe", "/files/images", "/files/meta/labels"}) {
		t.Errorf("the probe runs %q, want it to list both folders", args)
	}
	pod := trainingPod(t, ns, "train")
	at := slices.IndexFunc(pod.Spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/data" && m.ReadOnly })
	if claim := claimOf(pod); claim != "both" || at < 0 {
		t.Errorf("training mounts claim %q by %+v, want both at /data", claim, pod.Spec.Containers[0].VolumeMounts)
	}
	kubetest.Eventually(t, "the step to name both places", func() error {
		if text := log("train"); !strings.Contains(text, "s3://bucket/images") || !strings.Contains(text, "https://labels.example.com/v1") {
			return fmt.Errorf("it said:\n%s", text)
		}
		return nil
	})
}

// tiersOfRuntimes checks that each runtime with tiers gets all of them, in their order, as the API server stores it; and that Fluid's own
// controller of Alluxio configures the workers with both.
func tiersOfRuntimes(t *testing.T) {
	ns := newNamespace(t)
	alluxio, juice, jindo, goose := &fluidapi.AlluxioRuntime{}, &fluidapi.JuiceFSRuntime{}, &fluidapi.JindoRuntime{}, &fluidapi.GooseFSRuntime{}
	for kind, made := range map[v1alpha1.FluidKind]struct {
		runtime client.Object
		tiers   *fluidapi.TieredStore
	}{
		v1alpha1.FluidAlluxio: {alluxio, &alluxio.Spec.TieredStore}, v1alpha1.FluidJuiceFS: {juice, &juice.Spec.TieredStore},
		v1alpha1.FluidJindo: {jindo, &jindo.Spec.TieredStore}, v1alpha1.FluidGooseFS: {goose, &goose.Spec.TieredStore},
	} {
		name := strings.ToLower(string(kind))
		dc := thinCache(ns, name, "s3://bucket/"+name)
		dc.Spec.Fluid.Runtime = v1alpha1.FluidRuntime{Kind: kind, Replicas: 2, Tiers: []v1alpha1.FluidTier{
			{Medium: v1alpha1.FluidMemory, Quota: resource.MustParse("1Gi")},
			{Medium: "SSD", Path: "/mnt/ssd", Quota: resource.MustParse("20Gi")},
		}}
		cluster.Create(t, dc)
		cluster.Appear(t, made.runtime, ns, name)
		var got []string
		for _, level := range made.tiers.Levels {
			got = append(got, fmt.Sprintf("%s %s at %s", level.MediumType, level.Quota, level.Path))
		}
		if want := []string{"MEM 1Gi at /dev/shm", "SSD 20Gi at /mnt/ssd"}; !slices.Equal(got, want) {
			t.Errorf("the tiers of %T are %q, want %q", made.runtime, got, want)
		}
		set := &fluidapi.Dataset{}
		cluster.Appear(t, set, ns, name)
		if size := set.Annotations["pvc.fluid.io/resources.requests.storage"]; size != "42Gi" {
			t.Errorf("the claim of %s asks for %s, want 42Gi: both tiers of two workers", name, size)
		}
	}
	config := &corev1.ConfigMap{}
	cluster.Become(t, config, ns, "alluxio-config", "written", func() error {
		text := fmt.Sprint(config.Data)
		for _, part := range []string{"alluxio.worker.tieredstore.levels=2", "level0.alias=MEM", "level1.alias=SSD", "level1.dirs.quota=20"} {
			if !strings.Contains(text, part) {
				return fmt.Errorf("%s is not in %s", part, text)
			}
		}
		return nil
	})
}
