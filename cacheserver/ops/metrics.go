// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// The stages of a load, as the label "stage" has them.
const (
	StageFetch  = "fetch"  // waiting for column chunks from the object store
	StageDecode = "decode" // Parquet to Arrow, deletes and filter applied
	StageCopy   = "copy"   // Arrow into chunks
)

// The decoders of a load, as the label "decoder" has them.
const (
	DecoderDirect  = "direct"  // package decode
	DecoderGeneral = "general" // pqarrow, for what package decode does not cover: slower
)

// Metrics holds everything that one process counts, for Prometheus. Make it with NewMetrics; it is safe for concurrent use.
type Metrics struct {
	LoadSeconds   *prometheus.CounterVec // by stage, summed over the load's workers
	DecodedBytes  prometheus.Counter     // Arrow bytes that became chunks
	DecodedRows   prometheus.Counter
	SplitsLoaded  prometheus.Counter
	LoadColumns   *prometheus.CounterVec // columns of splits, by decoder
	Streams       *prometheus.GaugeVec   // open now, by kind
	StreamsOpened *prometheus.CounterVec // by kind
	SentBytes     *prometheus.CounterVec // FlightData bytes, by kind
	SentRows      *prometheus.CounterVec // by kind
	SendWait      *prometheus.CounterVec // seconds blocked on the transport, by kind
	Requests      *prometheus.CounterVec // finished calls, by method and code

	registry *prometheus.Registry
}

// NewMetrics makes the metrics and registers them with the Go and process collectors.
func NewMetrics() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.LoadSeconds = m.counterVec("load_seconds_total", "Seconds that load workers spent, by stage (fetch, decode, copy).", "stage")
	m.DecodedBytes = m.counter("load_decoded_bytes_total", "Arrow bytes written into memory by loads.")
	m.DecodedRows = m.counter("load_rows_total", "Rows written into memory by loads.")
	m.SplitsLoaded = m.counter("load_splits_total", "Splits loaded.")
	m.LoadColumns = m.counterVec("load_columns_total", "Columns of splits decoded, by decoder (direct, general): the general one is slower.", "decoder")
	m.Streams = prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "streams", Help: "Data streams open now, by kind (shard, epoch, take)."}, []string{"kind"})
	m.registry.MustRegister(m.Streams)
	m.StreamsOpened = m.counterVec("streams_opened_total", "Data streams opened, by kind.", "kind")
	m.SentBytes = m.counterVec("stream_bytes_total", "FlightData bytes handed to the transport, by kind.", "kind")
	m.SentRows = m.counterVec("stream_rows_total", "Rows handed to the transport, by kind.", "kind")
	m.SendWait = m.counterVec("stream_send_wait_seconds_total", "Seconds that streams waited for the transport to take a message, by kind.", "kind")
	m.Requests = m.counterVec("requests_total", "Finished gRPC calls, by method and status code.", "method", "code")
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

const namespace = "datacache"

// Gauge registers a value that is read when the metrics are asked for. The name gets the prefix datacache_.
func (m *Metrics) Gauge(name, help string, value func() float64) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, value))
}

// Counter registers a total that is read when the metrics are asked for. The name gets the prefix datacache_.
func (m *Metrics) Counter(name, help string, value func() float64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, value))
}

// Handler serves the metrics in Prometheus' text form.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

func (m *Metrics) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) counterVec(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	m.registry.MustRegister(c)
	return c
}
