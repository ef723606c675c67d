// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/stocktest"
)

// TestFilesAreMountedByTrainerItself checks that Trainer refuses a TrainJob that names files where Fluid is not installed, warns of a missing CSI
// plugin where only Fluid's kinds are, and then builds pods that mount the files, from a TrainJob that it does not modify.
func TestFilesAreMountedByTrainerItself(t *testing.T) {
	t.Parallel()
	namespace := cluster.Namespace(t)
	job := cacheJob(t, namespace, "2")
	job.Spec.Initializer.Dataset = &trainer.DatasetInitializer{
		StorageUri: new("fluid+s3://bucket/imagenet"),
		Env:        []corev1.EnvVar{{Name: "MOUNT_PATH", Value: "/data"}, {Name: "CACHE_QUOTA", Value: "4Gi"}, {Name: "CACHE_NAME", Value: "pictures"}},
	}
	err := cluster.Client.Create(t.Context(), job.DeepCopy())
	if err == nil || !strings.Contains(err.Error(), "there is no kind Dataset of data.fluid.io/v1alpha1") {
		t.Fatalf("without Fluid the API server answers %v", err)
	}

	installFluidKinds(t)
	user, warnings, err := cluster.WarnedClient()
	if err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, "the TrainJob to be admitted", func() error { return user.Create(t.Context(), job) })
	if job.Spec.RuntimeRef.Name != "torch-distributed" || len(job.Spec.RuntimePatches) > 0 || len(job.Spec.Trainer.Env) > 0 {
		t.Errorf("the TrainJob was edited: %+v", job.Spec)
	}
	if text := warnings.String(); !strings.Contains(text, "there is no CSIDriver fuse.csi.fluid.io") {
		t.Errorf("the warnings are %q, want one of the CSIDriver", text)
	}
	dc := &v1alpha1.DataCache{}
	found(t, dc, namespace, "pictures")
	if dc.Spec.Fluid == nil || dc.Spec.Fluid.MountPath != "/data" {
		t.Errorf("its cache is %+v, want files at /data", dc.Spec)
	}
	made := &jobset.JobSet{}
	found(t, made, namespace, job.Name)
	waits(t, made)
	if err := mounts(made, "pictures", "/data"); err != nil {
		t.Error(err)
	}
	step := made.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0]
	if !slices.ContainsFunc(step.Env, func(v corev1.EnvVar) bool {
		return v.Name == "CACHE_STATUS" && strings.HasSuffix(v.Value, "/status/"+namespace+"/pictures")
	}) {
		t.Errorf("the step's environment is %+v, want the address of its cache's state", step.Env)
	}
}

// mounts returns an error unless every container that trains mounts the claim at the path and knows the cache's name.
func mounts(made *jobset.JobSet, claim, path string) error {
	pod := made.Spec.ReplicatedJobs[1].Template.Spec.Template.Spec
	var errs []error
	if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim && v.PersistentVolumeClaim.ReadOnly
	}) {
		errs = append(errs, fmt.Errorf("the pod's volumes are %+v, want the claim %s", pod.Volumes, claim))
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		at := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == path && m.ReadOnly })
		named := slices.ContainsFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == "DATACACHE_NAME" && v.Value == claim })
		if at < 0 || !named {
			errs = append(errs, fmt.Errorf("container %s mounts %+v with %+v, want the files at %s and their name", c.Name, c.VolumeMounts, c.Env, path))
		}
	}
	return errors.Join(errs...)
}

// installFluidKinds installs the CRDs of the release of Fluid in go.mod, without its programs.
func installFluidKinds(t *testing.T) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(stocktest.ModuleDir(t, "github.com/fluid-cloudnative/fluid"), "charts", "fluid", "fluid", "crds", "*.yaml"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no CRD in Fluid's module: %v", err)
	}
	var all [][]byte
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, text)
	}
	file := filepath.Join(t.TempDir(), "crds.yaml")
	if err := os.WriteFile(file, bytes.Join(all, []byte("\n---\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Install(t.Context(), file, ""); err != nil {
		t.Fatal(err)
	}
}
