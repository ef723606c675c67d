// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// metrics are the controller's own metrics. Errors of reconciliations are in controller_runtime_reconcile_errors_total under the
// controllers' names: datacache, datacache-trainjob, datacache-clustertrainingruntime, datacache-trainingruntime.
type metrics struct{ provision, load *prometheus.HistogramVec }

const (
	labelEngine = "engine"
	engineArrow = "arrow"
	engineFluid = "fluid"
)

// engineName is the name of the engine of a cache, as in its spec.
func engineName(dc *v1alpha1.DataCache) string {
	if dc.Spec.Fluid != nil {
		return engineFluid
	}
	return engineArrow
}

// newMetrics registers the metrics; caches are counted by state from the informer at each scrape. A nil registry means
// controller-runtime's.
func newMetrics(registry prometheus.Registerer, caches client.Reader) (*metrics, error) {
	if registry == nil {
		registry = ctrlmetrics.Registry
	}
	m := &metrics{
		provision: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "datacache_provision_seconds",
			Help:    "Time from asking for a cache's pods until its head answered, or its claim was bound.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 12),
		}, []string{labelEngine}),
		load: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "datacache_load_seconds",
			Help:    "Time from asking for a cache's pods until every row was in memory, or its files could be mounted.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 15),
		}, []string{labelEngine}),
	}
	for _, c := range []prometheus.Collector{m.provision, m.load, &stateCollector{caches}} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// observe records a transition from one status to the next.
func (m *metrics) observe(dc *v1alpha1.DataCache, old, next *v1alpha1.DataCacheStatus, now time.Time) {
	if next.ProvisionedTime == nil {
		return
	}
	took := now.Sub(next.ProvisionedTime.Time).Seconds()
	if old.State == v1alpha1.StatePending && (isLoading(next.State) || next.State == v1alpha1.StateReady) {
		m.provision.WithLabelValues(engineName(dc)).Observe(took)
	}
	if next.ReadyTime != nil && old.ReadyTime == nil {
		m.load.WithLabelValues(engineName(dc)).Observe(took)
	}
}

var cachesDesc = prometheus.NewDesc("datacache_caches", "DataCaches by state and engine.", []string{"state", labelEngine}, nil)

var states = []v1alpha1.State{
	v1alpha1.StatePending, v1alpha1.StatePlanning, v1alpha1.StateLoading, v1alpha1.StateReady, v1alpha1.StateDegraded,
	v1alpha1.StateFailed, v1alpha1.StateReleased,
}

// collectTimeout bounds a scrape while the informers have not synced; afterwards it takes milliseconds.
const collectTimeout = 5 * time.Second

// stateCollector counts DataCaches by state. Every replica of the manager reports the same numbers, so aggregate them with max.
type stateCollector struct{ caches client.Reader }

// Describe names the one metric.
func (*stateCollector) Describe(out chan<- *prometheus.Desc) { out <- cachesDesc }

// Collect reports every state, even with no DataCache in it, so that graphs have no gaps.
func (c *stateCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout) //nolint:forbidigo // prometheus passes no context
	defer cancel()
	var list v1alpha1.DataCacheList
	if err := c.caches.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		out <- prometheus.NewInvalidMetric(cachesDesc, fmt.Errorf("count DataCaches: %w", err))
		return
	}
	type key struct {
		state  v1alpha1.State
		engine string
	}
	counts := map[key]int{}
	for _, state := range states {
		counts[key{state, engineArrow}], counts[key{state, engineFluid}] = 0, 0
	}
	for i := range list.Items {
		state := list.Items[i].Status.State
		if state == "" {
			state = v1alpha1.StatePending
		}
		counts[key{state, engineName(&list.Items[i])}]++
	}
	for k, n := range counts {
		out <- prometheus.MustNewConstMetric(cachesDesc, prometheus.GaugeValue, float64(n), string(k.state), k.engine)
	}
}
