// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"

	"go.opentelemetry.io/otel/trace"

	"github.com/kubeflow/datacache/cacheserver/local"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/redact"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/transport"
	"github.com/kubeflow/datacache/internal/buildinfo"
	"github.com/kubeflow/datacache/internal/tracing/export"
)

// process holds the listeners and the log that every serving command opens first.
type process struct {
	flight, http net.Listener // http is nil if HTTP is disabled
	scheme       string
	transport    transport.Implementation
	log          *slog.Logger
	metrics      *ops.Metrics
	tracer       trace.Tracer // nil: the environment names no collector of traces
	flush        func()       // sends the last spans; to be called before the process ends
}

// start opens the listeners, the log and the export of traces. role is the name of the command.
func (f *serveFlags) start(ctx context.Context, env environment, role string, store *objstore.Store) (*process, error) {
	log, err := f.logs.logger()
	if err != nil {
		return nil, err
	}
	transport, err := transport.ParseImplementation(f.transport)
	if err != nil {
		return nil, fmt.Errorf("--transport: %w", err)
	}
	p := &process{scheme: f.tls.Scheme(), transport: transport, log: log, metrics: ops.NewMetrics()}
	var listen net.ListenConfig
	if p.flight, err = listen.Listen(ctx, "tcp", f.listen); err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	if err := p.checkSecret(f); err != nil {
		return nil, err
	}
	if f.http != "" {
		if p.http, err = listen.Listen(ctx, "tcp", f.http); err != nil {
			return nil, fmt.Errorf("--http: %w", err)
		}
	}
	p.metrics.Register(buildinfo.Collector("cacheserver", builtVersion()))
	p.metrics.Counter("load_read_bytes_total", "Bytes read from the object store or files.", func() float64 { return float64(store.Stats().Bytes) })
	p.metrics.Counter("objstore_requests_total", "Requests to the object store.", func() float64 { return float64(store.Stats().Requests) })
	p.metrics.Counter("objstore_retries_total", "Requests to the object store that were tried again.", func() float64 { return float64(store.Stats().Retries) })
	p.metrics.Counter("objstore_failures_total", "Reads from the object store that failed for good.", func() float64 { return float64(store.Stats().Failures) })
	p.metrics.Counter("load_cached_bytes_total", "Bytes read from the object cache.", func() float64 { return float64(store.Stats().CacheBytes) })
	p.metrics.Counter("object_cache_hits_total", "Reads that the object cache served.", func() float64 { return float64(store.Stats().CacheHits) })
	p.metrics.Counter("object_cache_misses_total", "Blocks that the object cache did not have.", func() float64 { return float64(store.Stats().CacheMisses) })
	p.metrics.Counter("object_cache_failures_total", "Requests to the object cache that failed, and answers of it that were damaged.", func() float64 { return float64(store.Stats().CacheFailures) })
	p.tracer, p.flush, err = export.Start(ctx, export.Config{
		Env: env, Service: "datacache-" + role, Version: builtVersion(), Redact: redact.Text, Log: log,
	})
	return p, err
}

// countMemory exports the budget as metrics.
func (p *process) countMemory(b *rows.Budget) {
	p.metrics.Gauge("memory_used_bytes", "Bytes reserved now, for rows, loading and clients.", func() float64 { return float64(b.Used()) })
	p.metrics.Gauge("memory_clients_bytes", "Bytes of them reserved for clients: connections, requests, streams, answers.", func() float64 { return float64(b.Clients().Used()) })
	p.metrics.Gauge("memory_peak_bytes", "Most bytes ever reserved.", func() float64 { return float64(b.Peak()) })
	p.metrics.Gauge("memory_limit_bytes", "The memory limit.", func() float64 { return float64(b.Limit()) })
}

// announce prints the line that scripts wait for.
func (p *process) announce() {
	line := fmt.Sprintf("ready %s://%s", p.scheme, local.Reachable(p.flight.Addr()))
	if p.http != nil {
		line += " http://" + local.Reachable(p.http.Addr())
	}
	fmt.Println(line)
}
