// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// EnvResource describes, to the collector, who made a span.
const EnvResource = "OTEL_RESOURCE_ATTRIBUTES"

// addTraces adds to a cache's pod the variables with which the role's container sends traces, and those traces' cache. If the DataCache
// names a collector itself, only the latter is added. podSettingsHash leaves the variables out: running caches are not restarted for them.
func addTraces(pod *corev1.PodSpec, role string, dc *v1alpha1.DataCache, traces map[string]string) {
	at := slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == role })
	container := &pod.Containers[at]
	has := func(name string) bool {
		return slices.ContainsFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == name })
	}
	wanted := map[string]string{EnvResource: fmt.Sprintf("k8s.namespace.name=%s,datacache.cache=%s", dc.Namespace, dc.Name)}
	switch {
	case has("OTEL_EXPORTER_OTLP_ENDPOINT") || has("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
	case len(traces) > 0:
		maps.Copy(wanted, traces)
	default:
		return
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if !has(name) {
			container.Env = append(container.Env, variable(name, wanted[name]))
		}
	}
}
