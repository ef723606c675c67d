// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kubeflow/datacache/objectcache/identity"
)

// metrics are the metrics of a Server. Only authorized requests are counted by bucket, so clients can't create label values.
type metrics struct {
	registry      *prometheus.Registry
	requests      *prometheus.CounterVec
	hits, misses  *prometheus.CounterVec
	sentBytes     *prometheus.CounterVec
	receivedBytes *prometheus.CounterVec
	forwards      *prometheus.CounterVec
	partRequests  *prometheus.CounterVec
	reviewSeconds *prometheus.HistogramVec
	traffic       traffic
}

const namespace = "datacache_objectcache"

// Outcomes of requests to other nodes, and of token reviews.
const (
	labelOutcome    = "outcome"
	outcomeAnswered = "answered"
	outcomeFailed   = "failed"
	outcomeSpared   = "spared" // not sent, since another just failed
	ownerKnown      = "known"
	ownerUnknown    = "unknown"
)

func newMetrics(cfg Config) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	}
	m := &metrics{
		registry:      prometheus.NewRegistry(),
		requests:      counter("requests_total", "Requests answered here, forwarded ones too, by method and status.", "method", "code"),
		hits:          counter("hits_total", "Reads of an object that was here, by bucket.", "bucket"),
		misses:        counter("misses_total", "Reads of an object that was not here, by bucket.", "bucket"),
		sentBytes:     counter("sent_bytes_total", "Bytes of objects sent from here, by bucket.", "bucket"),
		receivedBytes: counter("received_bytes_total", "Bytes of objects received here, by bucket.", "bucket"),
		forwards:      counter("forwards_total", "Requests sent on to the node that has the key, by outcome (answered, failed, spared: not sent, since another just failed).", labelOutcome),
		partRequests:  counter("part_requests_total", "Requests for parts of large objects, sent to the nodes that have them, by outcome as forwards_total.", labelOutcome),
		reviewSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "review_seconds", Help: "Time that questions after a token's owner took, by outcome (known, unknown, failed).",
		}, []string{labelOutcome}),
	}
	for _, outcome := range []string{outcomeAnswered, outcomeFailed, outcomeSpared} { // at 0: Prometheus does not see an increase that makes a series
		m.forwards.WithLabelValues(outcome)
		m.partRequests.WithLabelValues(outcome)
	}
	for _, outcome := range []string{ownerKnown, ownerUnknown, outcomeFailed} {
		m.reviewSeconds.WithLabelValues(outcome)
	}
	m.registry.MustRegister(m.requests, m.hits, m.misses, m.sentBytes, m.receivedBytes, m.forwards, m.partRequests, m.reviewSeconds,
		newStoreCollector(cfg),
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

func (m *metrics) hit(bucket string) {
	m.hits.WithLabelValues(bucket).Inc()
	m.traffic.total.hits.Add(1)
	m.traffic.bucket(bucket).hits.Add(1)
}

func (m *metrics) miss(bucket string) {
	m.misses.WithLabelValues(bucket).Inc()
	m.traffic.total.misses.Add(1)
	m.traffic.bucket(bucket).misses.Add(1)
}

func (m *metrics) sent(bucket string, n int64) {
	m.sentBytes.WithLabelValues(bucket).Add(float64(n))
	m.traffic.total.sent.Add(n)
	m.traffic.bucket(bucket).sent.Add(n)
}

func (m *metrics) received(bucket string, n int64) {
	m.receivedBytes.WithLabelValues(bucket).Add(float64(n))
	m.traffic.total.received.Add(n)
	m.traffic.bucket(bucket).received.Add(n)
}

func (m *metrics) forwarded(outcome string) {
	m.forwards.WithLabelValues(outcome).Inc()
	m.traffic.forwards.Add(1)
	if outcome != outcomeAnswered {
		m.traffic.failures.Add(1)
	}
}

func (m *metrics) partRequested(outcome string) { m.partRequests.WithLabelValues(outcome).Inc() }

// timed is a Reviewer that measures the duration of another's reviews.
type timed struct {
	ask     identity.Reviewer
	seconds *prometheus.HistogramVec
}

// Review calls the other Reviewer and observes how long it took.
func (t timed) Review(ctx context.Context, token string) (identity.Identity, error) {
	began := time.Now()
	who, err := t.ask.Review(ctx, token)
	outcome := ownerKnown
	if err != nil {
		outcome = outcomeFailed
	}
	if errors.Is(err, identity.ErrUnknown) {
		outcome = ownerUnknown
	}
	t.seconds.WithLabelValues(outcome).Observe(time.Since(began).Seconds())
	return who, err
}

// storeCollector collects metrics of the store when they are scraped.
type storeCollector struct {
	cfg                              Config
	objects, bytes, quota            *prometheus.Desc
	evictions, evictedBytes, damaged *prometheus.Desc
	failures, members, rejected      *prometheus.Desc
	memory, memoryLimit              *prometheus.Desc
}

func newStoreCollector(cfg Config) *storeCollector {
	byBucket := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(namespace+"_"+name, help, []string{"bucket"}, nil)
	}
	return &storeCollector{
		cfg:          cfg,
		objects:      byBucket("bucket_objects", "Objects on this node's disk, by bucket."),
		bytes:        byBucket("bucket_bytes", "Bytes they take, with those being written, by bucket."),
		quota:        byBucket("bucket_quota_bytes", "Bytes a bucket may take."),
		evictions:    byBucket("evictions_total", "Objects removed to make room, by bucket."),
		evictedBytes: byBucket("evicted_bytes_total", "Bytes of objects removed to make room, by bucket."),
		damaged:      byBucket("damaged_total", "Objects dropped because their file was not as it was written, by bucket."),
		failures:     prometheus.NewDesc(namespace+"_disk_failures_total", "Operations that the disk refused or got wrong.", nil, nil),
		members:      prometheus.NewDesc(namespace+"_members", "Object caches that keys are spread over, as this one sees it.", nil, nil),
		memory:       prometheus.NewDesc(namespace+"_memory_used_bytes", "Bytes of memory that requests and connections have taken.", nil, nil),
		memoryLimit:  prometheus.NewDesc(namespace+"_memory_limit_bytes", "Bytes of memory that they may take; 0: no limit.", nil, nil),
		rejected:     prometheus.NewDesc(namespace+"_buckets_file_rejected", "1 while the buckets file is bad and an older one is in force.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *storeCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.objects, c.bytes, c.quota, c.evictions, c.evictedBytes, c.damaged, c.failures, c.members, c.rejected, c.memory, c.memoryLimit} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *storeCollector) Collect(to chan<- prometheus.Metric) {
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	for _, b := range c.cfg.Store.Stats() {
		to <- prometheus.MustNewConstMetric(c.objects, gauge, float64(b.Objects), b.Bucket)
		to <- prometheus.MustNewConstMetric(c.bytes, gauge, float64(b.Bytes), b.Bucket)
		to <- prometheus.MustNewConstMetric(c.quota, gauge, float64(b.Quota), b.Bucket)
		to <- prometheus.MustNewConstMetric(c.evictions, counter, float64(b.Evicted), b.Bucket)
		to <- prometheus.MustNewConstMetric(c.evictedBytes, counter, float64(b.EvictedBytes), b.Bucket)
		to <- prometheus.MustNewConstMetric(c.damaged, counter, float64(b.Damaged), b.Bucket)
	}
	to <- prometheus.MustNewConstMetric(c.failures, counter, float64(c.cfg.Store.Failures()))
	to <- prometheus.MustNewConstMetric(c.members, gauge, float64(c.cfg.Router.Members()))
	to <- prometheus.MustNewConstMetric(c.memory, gauge, float64(c.cfg.Memory.Used()))
	to <- prometheus.MustNewConstMetric(c.memoryLimit, gauge, float64(c.cfg.Memory.Limit()))
	rejected := 0.0
	if c.cfg.BucketsRejected() {
		rejected = 1
	}
	to <- prometheus.MustNewConstMetric(c.rejected, gauge, rejected)
}
