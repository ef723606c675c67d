// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// metrics are the controller's own metrics. Errors of reconciliations are in controller_runtime_reconcile_errors_total under the
// controllers' names: datacache, datacache-trainjob, datacache-clustertrainingruntime, datacache-trainingruntime.
type metrics struct {
	provision, load *prometheus.HistogramVec
	caches          *cachesCollector
}

const (
	labelEngine    = "engine"
	labelNamespace = "namespace"
	labelName      = "name"
	labelState     = "state"
	engineArrow    = "arrow"
	engineFluid    = "fluid"
)

// engineName is the name of the engine of a cache, as in its spec.
func engineName(dc *v1alpha1.DataCache) string {
	if dc.Spec.Fluid != nil {
		return engineFluid
	}
	return engineArrow
}

// newMetrics registers the metrics. Those of DataCaches are read from the informer at each scrape, once elected is closed. A nil registry
// means controller-runtime's.
func newMetrics(registry prometheus.Registerer, caches client.Reader, elected <-chan struct{}) (*metrics, error) {
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
	for _, engine := range []string{engineArrow, engineFluid} { // at 0: Prometheus does not see an increase that makes a series
		m.provision.WithLabelValues(engine)
		m.load.WithLabelValues(engine)
	}
	m.caches = &cachesCollector{caches: caches, elected: elected, degraded: map[types.NamespacedName]int{}}
	for _, c := range []prometheus.Collector{m.provision, m.load, m.caches} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// observe records a transition from one status to the next.
func (m *metrics) observe(dc *v1alpha1.DataCache, old, next *v1alpha1.DataCacheStatus, now time.Time) {
	if next.State == v1alpha1.StateDegraded && old.State != next.State {
		m.caches.countDegraded(client.ObjectKeyFromObject(dc))
	}
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

var (
	cachesDesc = prometheus.NewDesc("datacache_caches", "DataCaches by state and engine.", []string{labelState, labelEngine}, nil)
	infoDesc   = prometheus.NewDesc("datacache_cache_info", "1 for each DataCache, with its state.", []string{labelNamespace, labelName, labelState}, nil)
	ratioDesc  = prometheus.NewDesc("datacache_cache_loaded_ratio", "Share of a DataCache that is loaded, from 0 to 1; none if it is not known.", []string{labelNamespace, labelName}, nil)
	usersDesc  = prometheus.NewDesc("datacache_cache_users", "TrainJobs that use a DataCache.", []string{labelNamespace, labelName}, nil)
	readyDesc  = prometheus.NewDesc("datacache_cache_ready_timestamp_seconds", "When a DataCache was Ready first since its pods were asked for; none if it was not yet.", []string{labelNamespace, labelName}, nil)
	lossesDesc = prometheus.NewDesc("datacache_cache_degraded_total", "How often a DataCache became Degraded since this manager leads.", []string{labelNamespace, labelName}, nil)
	bytesDesc  = prometheus.NewDesc("datacache_cache_bytes", "Bytes of a DataCache in memory, of one copy; none if they are not known.", []string{labelNamespace, labelName}, nil)
)

var states = []v1alpha1.State{
	v1alpha1.StatePending, v1alpha1.StatePlanning, v1alpha1.StateLoading, v1alpha1.StateReady, v1alpha1.StateDegraded,
	v1alpha1.StateFailed, v1alpha1.StateReleased,
}

// collectTimeout bounds a scrape while the informers have not synced; afterwards it takes milliseconds.
const collectTimeout = 5 * time.Second

// cachesCollector exports the DataCaches' statuses from the informer. Only the leader exports any, so that sums over the managers count
// each DataCache once.
type cachesCollector struct {
	caches  client.Reader
	elected <-chan struct{} // closed when this manager leads

	mu       sync.Mutex
	degraded map[types.NamespacedName]int // how often DataCaches became Degraded; of those that exist since the last scrape
}

func (c *cachesCollector) countDegraded(cache types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.degraded[cache]++
}

// losses returns how often each of the DataCaches became Degraded, and forgets others.
func (c *cachesCollector) losses(caches []v1alpha1.DataCache) map[types.NamespacedName]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := make(map[types.NamespacedName]int, len(caches))
	for i := range caches {
		key := client.ObjectKeyFromObject(&caches[i])
		kept[key] = c.degraded[key]
	}
	c.degraded = maps.Clone(kept)
	return kept
}

// Describe names the metrics.
func (*cachesCollector) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{cachesDesc, infoDesc, ratioDesc, bytesDesc, usersDesc, readyDesc, lossesDesc} {
		out <- desc
	}
}

// Collect reports every state, even with no DataCache in it, so that graphs have no gaps.
func (c *cachesCollector) Collect(out chan<- prometheus.Metric) {
	select {
	case <-c.elected:
	default:
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout) //nolint:forbidigo // prometheus passes no context
	defer cancel()
	var list v1alpha1.DataCacheList
	if err := c.caches.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		out <- prometheus.NewInvalidMetric(cachesDesc, fmt.Errorf("list DataCaches: %w", err))
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
	losses := c.losses(list.Items)
	for i := range list.Items {
		dc := &list.Items[i]
		state := cmp.Or(dc.Status.State, v1alpha1.StatePending)
		counts[key{state, engineName(dc)}]++
		collectCache(out, dc, state)
		// At 0 from the beginning: Prometheus does not see an increase that makes a series.
		out <- prometheus.MustNewConstMetric(lossesDesc, prometheus.CounterValue, float64(losses[client.ObjectKeyFromObject(dc)]), dc.Namespace, dc.Name)
	}
	for k, n := range counts {
		out <- gauge(cachesDesc, float64(n), string(k.state), k.engine)
	}
}

// collectCache reports one DataCache.
func collectCache(out chan<- prometheus.Metric, dc *v1alpha1.DataCache, state v1alpha1.State) {
	out <- gauge(infoDesc, 1, dc.Namespace, dc.Name, string(state))
	if percent := dc.Status.LoadedPercent; percent != nil {
		out <- gauge(ratioDesc, float64(*percent)/100, dc.Namespace, dc.Name)
	}
	if bytes := dc.Status.Bytes; bytes != nil {
		out <- gauge(bytesDesc, float64(*bytes), dc.Namespace, dc.Name)
	}
	out <- gauge(usersDesc, float64(dc.Status.Users), dc.Namespace, dc.Name)
	if ready := dc.Status.ReadyTime; ready != nil {
		out <- gauge(readyDesc, float64(ready.Unix()), dc.Namespace, dc.Name)
	}
}

func gauge(desc *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}
