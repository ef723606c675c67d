// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// metrics are the worker's metrics. They are safe for concurrent use.
type metrics struct {
	created prometheus.Counter
	failed  *prometheus.CounterVec
	length  prometheus.Gauge
	wait    prometheus.Histogram
}

func newMetrics(registry prometheus.Registerer, limiter *rate.Limiter) (*metrics, error) {
	m := &metrics{
		created: prometheus.NewCounter(prometheus.CounterOpts{Name: "datacache_claims_created_total", Help: "Claims created."}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "datacache_claims_failed_total", Help: "Attempts after which a pod still waits, by the API server's reason; or taken: a claim of this name has another owner; or stranded: no ready node can use the volume.",
		}, []string{"reason"}),
		length: prometheus.NewGauge(prometheus.GaugeOpts{Name: "datacache_claim_queue_length", Help: "Pods that wait for claims; 0 where the manager does not lead."}),
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "datacache_claim_wait_seconds", Help: "Time from a pod's creation until its gate was opened.", Buckets: prometheus.ExponentialBuckets(0.125, 2, 17),
		}),
	}
	tokens := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "datacache_claim_tokens", Help: "Claims that may be created at once."}, limiter.Tokens)
	for _, c := range []prometheus.Collector{m.created, m.failed, m.length, m.wait, tokens} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}
