// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts the requests and bytes of mirrors, by kind of mirror. Create it with NewMetrics; it is safe for concurrent use.
type Metrics struct {
	hits, misses, originBytes, stale, refused, poisoned, large *prometheus.CounterVec
}

// NewMetrics returns Metrics with a series of value 0 for each kind: rates in Prometheus miss the increase with which a series appears.
func NewMetrics(kinds ...string) *Metrics {
	counter := func(name, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "datacache_mirror", Name: name, Help: help}, []string{"kind"})
		for _, kind := range kinds {
			c.WithLabelValues(kind)
		}
		return c
	}
	return &Metrics{
		hits:        counter("hits_total", "Blocks and documents that were on this node's disk."),
		misses:      counter("misses_total", "Blocks and documents that this node requested from upstream."),
		originBytes: counter("origin_bytes_total", "Bytes of blocks and documents received from upstream."),
		stale:       counter("stale_total", "Documents and rights served from before a failure of upstream."),
		refused:     counter("refused_total", "Requests refused, by upstream or by the mirror."),
		poisoned:    counter("poisoned_total", "Blobs or blocks from upstream that did not match their digest."),
		large:       counter("large_total", "Files that are too large for clients' plain downloads and left to Xet."),
	}
}

// Collectors returns the metrics, to be registered.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.hits, m.misses, m.originBytes, m.stale, m.refused, m.poisoned, m.large}
}

// Stale counts a stored document, or a remembered permission, that was used because upstream failed.
func (m *Metrics) Stale(kind string) { m.stale.WithLabelValues(kind).Inc() }

// Refuse counts a refused request.
func (m *Metrics) Refuse(kind string) { m.refused.WithLabelValues(kind).Inc() }

// Large counts a file that is not mirrored because clients download it by Xet.
func (m *Metrics) Large(kind string) { m.large.WithLabelValues(kind).Inc() }

// Poison counts a blob or block from upstream that did not match its digest.
func (m *Metrics) Poison(kind string) { m.poisoned.WithLabelValues(kind).Inc() }
