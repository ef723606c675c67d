// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package fluid

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// warned checks that a TrainJob is admitted with a warning where FUSE pods will probably be refused.
func warned(t *testing.T) {
	ns := cluster.Namespace(t)
	namespace := &corev1.Namespace{}
	cluster.Become(t, namespace, "", ns, "labelled", func() error {
		namespace.Labels["pod-security.kubernetes.io/enforce"] = "baseline"
		return cluster.Client.Update(t.Context(), namespace)
	})
	own, warnings, err := cluster.WarnedClient()
	if err != nil {
		t.Fatal(err)
	}
	if err := own.Create(t.Context(), fileJob(ns, "train"), client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	if text := warnings.String(); !strings.Contains(text, "enforce=baseline, which refuses the privileged FUSE pods") || strings.Contains(text, "CSIDriver") {
		t.Errorf("the warnings are %q, want one of the FUSE pods alone", text)
	}
}

// refusals checks what admission and the API server refuse.
func refusals(t *testing.T) {
	ns := cluster.Namespace(t)
	cluster.Create(t, thinCache(ns, "other", "s3://bucket/other"))
	refused(t, fileJob(ns, "train", "CACHE_NAME", "other"), "CACHE_NAME=other", "spec.fluid.mounts", "s3://bucket/other")
	refused(t, fileJob(ns, "train", "CACHE_RUNTIME", "", "CACHE_PROFILE", ""), "CACHE_QUOTA")
	for name, c := range map[string]struct {
		edit func(*v1alpha1.DataCache)
		want string
	}{
		"two engines": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Arrow = &v1alpha1.ArrowCache{Table: "a.b", MetadataLocation: new("s3://b/m")}
		}, "exactly one engine must be set"},
		"access": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Access.Namespaces = v1alpha1.NamespaceAccess{From: v1alpha1.AccessNames, Names: []string{"x"}}
		}, "access.namespaces must be unset with fluid"},
		"credentials": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Credentials = &v1alpha1.Credentials{SecretRef: corev1.LocalObjectReference{Name: "x"}}
		}, "credentials must not be set with fluid"},
		"sharing":    {func(dc *v1alpha1.DataCache) { dc.Spec.Sharing.MaxJobs = 1 }, "sharing must be unset with fluid"},
		"no profile": {func(dc *v1alpha1.DataCache) { dc.Spec.Fluid.Runtime.Profile = "" }, "profile must be set with kind Thin"},
		"no tiers": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Fluid.Runtime = v1alpha1.FluidRuntime{Kind: v1alpha1.FluidAlluxio, Replicas: 1}
		}, "tiers must be set"},
		"no path": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Fluid.Runtime.Tiers = []v1alpha1.FluidTier{{Medium: v1alpha1.FluidSSD, Quota: resource.MustParse("1Gi")}}
		}, "path must be set with medium SSD"},
		"no quota": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Fluid.Runtime.Tiers = []v1alpha1.FluidTier{{Medium: v1alpha1.FluidMemory}}
		}, "quota must be more than 0"},
		"warm-up":       {func(dc *v1alpha1.DataCache) { dc.Spec.Fluid.WarmUp = true }, "warmUp must be false"},
		"relative path": {func(dc *v1alpha1.DataCache) { dc.Spec.Fluid.MountPath = "data" }, "should match"},
	} {
		dc := thinCache(ns, "files", "s3://bucket/files")
		c.edit(dc)
		if err := cluster.Client.Create(t.Context(), dc, client.DryRunAll); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the API server answers %v, want %q", name, err, c.want)
		}
	}
	dc := thinCache(ns, "other", "")
	kubetest.Eventually(t, "a changed location to be refused", func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(dc), dc); err != nil {
			return err
		}
		dc.Spec.Fluid.Mounts[0].MountPoint = "s3://bucket/elsewhere"
		if err := cluster.Client.Update(t.Context(), dc); err == nil || !strings.Contains(err.Error(), "mounts can't be changed") {
			return fmt.Errorf("the API server answers %w", err)
		}
		return nil
	})
}
