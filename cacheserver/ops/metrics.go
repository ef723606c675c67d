// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ops has the Prometheus metrics of heads and data nodes.
package ops

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// The stages of a load: values of the label "stage".
const (
	StageFetch  = "fetch"  // waiting for column chunks from the object store
	StageDecode = "decode" // decoding Parquet to Arrow and applying deletes and filter
	StageCopy   = "copy"   // copying Arrow arrays to chunks
)

// The decoders of a load: values of the label "decoder".
const (
	DecoderDirect  = "direct"  // package decode
	DecoderGeneral = "general" // pqarrow, for types that package decode does not support: slower
)

// Metrics holds all metrics of a process. Make it with NewMetrics; it is safe for concurrent use.
type Metrics struct {
	LoadSeconds   *prometheus.CounterVec // by stage, summed over the load's workers
	DecodedBytes  prometheus.Counter     // bytes of the chunks of loads
	DecodedRows   prometheus.Counter
	SplitsLoaded  prometheus.Counter
	LoadColumns   *prometheus.CounterVec // loaded columns, counted once a split, by decoder
	Streams       *prometheus.GaugeVec   // open now, by request kind
	StreamsOpened *prometheus.CounterVec // by kind
	SentBytes     *prometheus.CounterVec // FlightData bytes, by request kind
	SentRows      *prometheus.CounterVec // by kind
	SendWait      *prometheus.CounterVec // seconds blocked on the transport, by request kind
	Work          *prometheus.CounterVec // seconds that the node took to make batches, by request kind
	FilterIndexes prometheus.Gauge       // indexes of clients' filters in memory
	FilterBytes   prometheus.Gauge       // bytes of these indexes
	FilterSeconds prometheus.Counter     // seconds spent on building them
	SpillRead     prometheus.Counter     // bytes of chunks read from spill files
	SpillRepaired prometheus.Counter     // chunks decoded again, since their files could not be read or had other bytes
	Requests      *prometheus.CounterVec // finished calls, by method and code
	BadHandshakes prometheus.Counter     // TLS handshakes that failed
	JobBytes      *JobCounter            // FlightData bytes, by job
	JobWait       *JobCounter            // seconds that streams waited for their turn, by job

	registry *prometheus.Registry
	jobs     jobNames
}

// NewMetrics makes the metrics and registers them, together with the Go and process collectors.
func NewMetrics() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.LoadSeconds = m.counterVec("load_seconds_total", "Seconds that load workers spent, by stage (fetch, decode, copy).", "stage")
	m.DecodedBytes = m.counter("load_decoded_bytes_total", "Bytes of rows written into memory by loads.")
	m.DecodedRows = m.counter("load_rows_total", "Rows written into memory by loads.")
	m.SplitsLoaded = m.counter("load_splits_total", "Splits loaded.")
	m.LoadColumns = m.counterVec("load_columns_total", "Columns of splits decoded, by decoder (direct, general): the general one is slower.", "decoder")
	m.Streams = prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "streams", Help: "Data streams open now, by kind (shard, epoch, take, mix)."}, []string{"kind"})
	m.registry.MustRegister(m.Streams)
	m.StreamsOpened = m.counterVec("streams_opened_total", "Data streams opened, by kind.", "kind")
	m.SentBytes = m.counterVec("stream_bytes_total", "FlightData bytes handed to the transport, by kind.", "kind")
	m.SentRows = m.counterVec("stream_rows_total", "Rows handed to the transport, by kind.", "kind")
	m.SendWait = m.counterVec("stream_send_wait_seconds_total", "Seconds that streams waited for the transport to take a message, by kind.", "kind")
	m.Work = m.counterVec("stream_work_seconds_total", "Seconds that streams waited for the data node to make a batch, by kind.", "kind")
	m.FilterIndexes = m.gauge("filter_indexes", "Indexes of clients' filters in memory.")
	m.FilterBytes = m.gauge("filter_bytes", "Bytes of the indexes of clients' filters.")
	m.FilterSeconds = m.counter("filter_seconds_total", "Seconds of making the indexes of clients' filters.")
	m.SpillRead = m.counter("spill_read_bytes_total", "Bytes read from spill files.")
	m.SpillRepaired = m.counter("spill_repaired_chunks_total", "Chunks decoded again from the table, since their spill files could not be read or had other bytes.")
	m.Requests = m.counterVec("requests_total", "Finished gRPC calls, by method and status code.", "method", "code")
	m.BadHandshakes = m.counter("tls_handshakes_failed_total", "TLS handshakes of clients that failed.")
	m.JobBytes = &JobCounter{counters: m.counterVec("job_bytes_total", "FlightData bytes handed to the transport, by job.", "job"), names: &m.jobs}
	m.JobWait = &JobCounter{counters: m.counterVec("job_wait_seconds_total", "Seconds that streams waited for their turn while other jobs had theirs, by job.", "job"), names: &m.jobs}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

const namespace = "datacache"

// Gauge registers a gauge whose value is read at each scrape. The name gets the prefix datacache_.
func (m *Metrics) Gauge(name, help string, value func() float64) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, value))
}

// Counter registers a counter whose value is read at each scrape. The name gets the prefix datacache_.
func (m *Metrics) Counter(name, help string, value func() float64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, value))
}

// Register registers a collector.
func (m *Metrics) Register(c prometheus.Collector) { m.registry.MustRegister(c) }

// Handler serves the metrics in Prometheus' text format.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

func (m *Metrics) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
	m.registry.MustRegister(g)
	return g
}

func (m *Metrics) counterVec(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	m.registry.MustRegister(c)
	return c
}
