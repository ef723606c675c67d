// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/promtest"
)

// TestManagersMetrics has Prometheus scrape the leading manager while it makes a cache. Every expression of a dashboard that names the
// manager's metrics gives a number, and docs name all of its own metrics, and no others.
func TestManagersMetrics(t *testing.T) {
	runtimes(t)
	ns := cluster.Namespace(t)
	managers := map[string]string{"app.kubernetes.io/name": "datacache-manager"}
	web := httptest.NewTLSServer(promhttp.HandlerFor(prometheus.Gatherers{leading().metrics, ctrlmetrics.Registry}, promhttp.HandlerOpts{}))
	defer web.Close()
	server := promtest.Start(t, "../..",
		promtest.Pod{URL: web.URL, Namespace: systemNamespace, Name: "manager-0", Port: "metrics", Labels: managers},
		promtest.Pod{Namespace: systemNamespace, Name: "manager-0", Port: "webhook", Labels: managers},
		promtest.Pod{Namespace: systemNamespace, Name: "other", Port: "metrics", Labels: map[string]string{"app.kubernetes.io/name": "other"}})
	served(t, ns, "watched")
	cluster.Create(t, cacheJob(ns, "watched", "cache://demo/reviews", tableEnv()...))
	all(t, ns, 1, v1alpha1.StateReady)
	asked := 0
	for _, name := range promtest.Dashboards {
		for _, q := range promtest.Queries(t, "../..", name, map[string]string{"namespace": ns, "cache": "watched"}) {
			if !slices.ContainsFunc(promtest.Metrics(q.Expr), promtest.OfManager) {
				continue // test/monitoring has it
			}
			asked++
			kubetest.Eventually(t, name+"/"+q.Panel, func() error { return server.HasNumbers(q.Expr) })
		}
	}
	if asked == 0 {
		t.Error("no dashboard names a metric of the manager")
	}
	exported, err := server.Metrics()
	if err != nil {
		t.Fatal(err)
	}
	promtest.Documented(t, "../..", exported, promtest.OfManager)
}

// leading is the manager that leads: the first one, until TestAnotherManagerTakesOver has stopped it.
func leading() *running {
	select {
	case <-other.Elected():
		return other
	default:
		return leader
	}
}
