// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/controller/workload"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/cachetest"
)

// TestTracesOfCaches checks which OTEL_ variables heads and data nodes get from the manager.
func TestTracesOfCaches(t *testing.T) {
	t.Parallel()
	managers := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/$x", "OTEL_TRACES_SAMPLER": "always_on"}
	const identity = "k8s.namespace.name=team,datacache.cache=reviews"
	for name, c := range map[string]struct {
		managers map[string]string
		edit     func(*v1alpha1.ArrowCache)
		want     map[string]string
	}{
		"none": {nil, func(*v1alpha1.ArrowCache) {}, map[string]string{}},
		"the manager's": {managers, func(*v1alpha1.ArrowCache) {}, map[string]string{
			"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/$$x", "OTEL_TRACES_SAMPLER": "always_on", workload.EnvResource: identity,
		}},
		"a collector of its own": {managers, func(a *v1alpha1.ArrowCache) {
			setInTemplates(a, corev1.EnvVar{Name: "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", Value: "http://mine:4318"})
		}, map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://mine:4318", workload.EnvResource: identity}},
		"its own, none of the manager's": {nil, func(a *v1alpha1.ArrowCache) {
			setInTemplates(a, corev1.EnvVar{Name: "OTEL_EXPORTER_OTLP_ENDPOINT", Value: "http://mine:4318"}, corev1.EnvVar{Name: workload.EnvResource, Value: "team=a"})
		}, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://mine:4318", workload.EnvResource: "team=a"}},
		"another sampler": {managers, func(a *v1alpha1.ArrowCache) {
			setInTemplates(a, corev1.EnvVar{Name: "OTEL_TRACES_SAMPLER", Value: "always_off"})
		}, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/$$x", "OTEL_TRACES_SAMPLER": "always_off", workload.EnvResource: identity}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dc := cachetest.Minimal()
			dc.Namespace, dc.Name = "team", "reviews"
			c.edit(dc.Spec.Arrow)
			set, err := workload.LeaderWorkerSet(dc, workload.Server{Image: "image", Traces: c.managers})
			if err != nil {
				t.Fatal(err)
			}
			template := set.Spec.LeaderWorkerTemplate
			for role, pod := range map[string]corev1.PodSpec{wellknown.RoleHead: template.LeaderTemplate.Spec, wellknown.RoleNode: template.WorkerTemplate.Spec} {
				got := map[string]string{}
				for _, container := range pod.Containers {
					for _, v := range container.Env {
						if strings.HasPrefix(v.Name, "OTEL_") && container.Name == role {
							got[v.Name] += v.Value
						}
					}
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("variables of the %s (-want +got):\n%s", role, diff)
				}
			}
			other, err := workload.LeaderWorkerSet(dc, workload.Server{Image: "image"})
			if err != nil {
				t.Fatal(err)
			}
			kept := other.DeepCopy()
			kube.MergeDesired(kept, set)
			if !cmp.Equal(kept.Spec.LeaderWorkerTemplate, other.Spec.LeaderWorkerTemplate) {
				t.Error("running pods are made anew for the manager's collector")
			}
		})
	}
}

// setInTemplates sets variables in the templates of head and data nodes, which have another container too.
func setInTemplates(a *v1alpha1.ArrowCache, env ...corev1.EnvVar) {
	of := func(role string) *v1alpha1.PodTemplate {
		return &v1alpha1.PodTemplate{Spec: &corev1.PodSpec{Containers: []corev1.Container{{Name: "aside"}, {Name: role, Env: env}}}}
	}
	a.Head.Template, a.DataNode.Template = of(wellknown.RoleHead), of(wellknown.RoleNode)
}
