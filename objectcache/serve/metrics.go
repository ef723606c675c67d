// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const namespace = "datacache_objectcache"

// metrics are what Prometheus gets besides Traffic.
type metrics struct {
	registry      *prometheus.Registry
	requests      *prometheus.CounterVec
	reviewSeconds *prometheus.HistogramVec
	badHandshakes prometheus.Counter
}

func newMetrics(cfg Config, t *Traffic) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "requests_total", Help: "Requests answered here, forwarded ones too, by method and status.",
		}, []string{"method", "code"}),
		reviewSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "review_seconds", Help: "Time that questions after a token's owner took, by outcome (known, unknown, failed).",
		}, []string{labelOutcome}),
		badHandshakes: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "tls_handshakes_failed_total", Help: "TLS handshakes of clients that failed."}),
	}
	for _, outcome := range []string{ownerKnown, ownerUnknown, outcomeFailed} { // at 0: Prometheus does not see an increase that makes a series
		m.reviewSeconds.WithLabelValues(outcome)
	}
	m.registry.MustRegister(m.requests, m.reviewSeconds, m.badHandshakes, collector{cfg, t},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.registry.MustRegister(cfg.Collectors...)
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// methods are the label values for HTTP methods; all others are counted as "other".
var methods = map[string]string{"GET": "GET", "HEAD": "HEAD", "PUT": "PUT", "DELETE": "DELETE", "POST": "POST"}

func (m *metrics) request(method string, status int) {
	name, ok := methods[method]
	if !ok {
		name = "other"
	}
	m.requests.WithLabelValues(name, strconv.Itoa(status)).Inc()
}

// collector collects the numbers of Traffic, the store and the configuration when they are scraped.
type collector struct {
	cfg     Config
	traffic *Traffic
}

// Describe implements prometheus.Collector. It describes nothing: the labels are those of the buckets at each scrape.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	send := func(kind prometheus.ValueType, name, help string, value int64, label ...string) {
		var names []string
		if len(label) > 0 {
			names = []string{label[0]}
			label = label[1:]
		}
		to <- prometheus.MustNewConstMetric(prometheus.NewDesc(namespace+"_"+name, help, names, nil), kind, float64(value), label...)
	}
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	for name, n := range c.traffic.buckets() {
		send(counter, "hits_total", "Reads of an object that was here, by bucket.", n.hits.Load(), "bucket", name)
		send(counter, "misses_total", "Reads of an object that was not here, by bucket.", n.misses.Load(), "bucket", name)
		send(counter, "sent_bytes_total", "Bytes of objects sent from here, by bucket.", n.sent.Load(), "bucket", name)
		send(counter, "received_bytes_total", "Bytes of objects received here, by bucket.", n.received.Load(), "bucket", name)
	}
	requests := func(name, help string, n *outcomes) {
		send(counter, name, help, n.answered.Load(), labelOutcome, outcomeAnswered)
		send(counter, name, help, n.failed.Load(), labelOutcome, outcomeFailed)
		send(counter, name, help, n.spared.Load(), labelOutcome, outcomeSpared)
	}
	requests("forwards_total", "Requests sent on to the node that has the key, by outcome (answered, failed, spared: not sent, since another just failed).", &c.traffic.forwards)
	requests("part_requests_total", "Requests for parts of large objects, sent to the nodes that have them, by outcome as forwards_total.", &c.traffic.parts)
	for _, b := range c.cfg.Store.Stats() {
		send(gauge, "bucket_objects", "Objects on this node's disk, by bucket.", b.Objects, "bucket", b.Bucket)
		send(gauge, "bucket_bytes", "Bytes they take, with those being written, by bucket.", b.Bytes, "bucket", b.Bucket)
		send(gauge, "bucket_quota_bytes", "Bytes a bucket may take.", b.Quota, "bucket", b.Bucket)
		send(counter, "evictions_total", "Objects removed to make room, by bucket.", b.Evicted, "bucket", b.Bucket)
		send(counter, "evicted_bytes_total", "Bytes of objects removed to make room, by bucket.", b.EvictedBytes, "bucket", b.Bucket)
		send(counter, "damaged_total", "Objects dropped because their file was not as it was written, by bucket.", b.Damaged, "bucket", b.Bucket)
	}
	send(counter, "disk_failures_total", "Operations that the disk refused or got wrong.", c.cfg.Store.Failures())
	send(gauge, "members", "Object caches that keys are spread over, as this one sees it.", int64(c.cfg.Router.Members()))
	send(gauge, "memory_used_bytes", "Bytes of memory that requests and connections have taken.", c.cfg.Memory.Used())
	send(gauge, "memory_limit_bytes", "Bytes of memory that they may take; 0: no limit.", c.cfg.Memory.Limit())
	rejected := int64(0)
	if c.cfg.BucketsRejected() {
		rejected = 1
	}
	send(gauge, "buckets_file_rejected", "1 while the buckets file is bad and an older one is in force.", rejected)
}
