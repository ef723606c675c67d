// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package monitoring checks the objects for the Prometheus operator against its types.
package monitoring

import (
	"bytes"
	"os"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"
)

const component = "../../manifests/components/monitoring/"

// TestObjectsHaveTheOperatorsFields decodes each object into its type, which must have all of its fields.
func TestObjectsHaveTheOperatorsFields(t *testing.T) {
	kinds := map[string]func() any{
		monitoringv1.ServiceMonitorsKind: func() any { return &monitoringv1.ServiceMonitor{} },
		monitoringv1.PodMonitorsKind:     func() any { return &monitoringv1.PodMonitor{} },
		monitoringv1.PrometheusRuleKind:  func() any { return &monitoringv1.PrometheusRule{} },
	}
	found := map[string]int{}
	for _, file := range []string{"monitors.yaml", "rules.yaml"} {
		text, err := os.ReadFile(component + file)
		if err != nil {
			t.Fatal(err)
		}
		for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
			var head struct {
				APIVersion, Kind string
			}
			if err := yaml.Unmarshal(document, &head); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			object, ok := kinds[head.Kind]
			if !ok || head.APIVersion != monitoringv1.SchemeGroupVersion.String() {
				t.Fatalf("%s has a %s of %s, which is no object of the operator", file, head.Kind, head.APIVersion)
			}
			if err := yaml.UnmarshalStrict(document, object()); err != nil {
				t.Errorf("%s: %s: %v", file, head.Kind, err)
			}
			found[head.Kind]++
		}
	}
	for kind := range kinds {
		if found[kind] == 0 {
			t.Errorf("there is no %s", kind)
		}
	}
}
