// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/kubeflow/datacache/test/kit/promtest"
)

// TestDocsNameTheMetrics checks that docs name every metric, and no others.
func TestDocsNameTheMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := newMetrics(registry, rate.NewLimiter(1, 1))
	if err != nil {
		t.Fatal(err)
	}
	m.failed.WithLabelValues("taken")
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, family := range families {
		names = append(names, family.GetName())
	}
	promtest.Documented(t, "..", names, func(name string) bool { return strings.HasPrefix(name, "datacache_claim") })
}
