// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"

	"github.com/kubeflow/datacache/cacheserver/access"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/sink"
	"github.com/kubeflow/datacache/cacheserver/transport"
	"github.com/kubeflow/datacache/internal/buildinfo"
	"github.com/kubeflow/datacache/internal/command"
	"github.com/kubeflow/datacache/internal/opshttp"
	"github.com/kubeflow/datacache/internal/redact"
	"github.com/kubeflow/datacache/internal/tracing/export"
)

// start completes the configuration: it opens the listeners, the log and the export of traces, whose last spans flush sends before the
// process ends. role is the name of the command.
func (f *serveFlags) start(ctx context.Context, env command.Env, role string, src opened) (flush func(), err error) {
	f.Source, f.Store, f.Metrics = src.Source, src.store, ops.NewMetrics()
	f.Tables = &sink.Tables{Store: src.store, Location: src.catalog, Budget: f.Budget}
	if f.Log, err = f.logs.Logger(); err != nil {
		return nil, err
	}
	if src.log != nil {
		src.log(f.Log)
	}
	if f.Transport, err = transport.ParseImplementation(f.transport); err != nil {
		return nil, fmt.Errorf("--transport: %w", err)
	}
	if err := f.openAccess(ctx); err != nil {
		return nil, err
	}
	var listen net.ListenConfig
	if f.Flight, err = listen.Listen(ctx, "tcp", f.listen); err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	if err := f.checkSecret(); err != nil {
		return nil, err
	}
	if f.http != "" {
		if f.HTTP, err = listen.Listen(ctx, "tcp", f.http); err != nil {
			return nil, fmt.Errorf("--http: %w", err)
		}
	}
	f.count()
	f.Tracer, flush, err = export.Start(ctx, export.Config{
		Env: env, Service: "datacache-" + role, Version: builtVersion(), Redact: redact.Text, Log: f.Log,
	})
	return flush, err
}

// openAccess opens the rules of who may read, and follows their file until ctx ends. Tokens are never asked for in plain text.
func (f *serveFlags) openAccess(ctx context.Context) (err error) {
	f.TLS.Plain = f.TLS.Authority != "" || f.access != "" && f.TLS.Enabled()
	if f.access == "" {
		return nil
	}
	if f.Access, err = access.Open(f.access, f.Log); err != nil {
		return fmt.Errorf("--access: %w", err)
	}
	if f.Access.Known() && !f.TLS.Enabled() {
		return fmt.Errorf("--access: %s has readers Known, and without TLS whoever sees the network would have their tokens: give --tls-authority, or --tls-cert and --tls-key", f.access)
	}
	go f.Access.Watch(ctx)
	return nil
}

// count exports as metrics what the store and the budget count.
func (f *serveFlags) count() {
	m, store, b := f.Metrics, f.Store, f.Budget
	m.Register(buildinfo.Collector("cacheserver", builtVersion()))
	m.Counter("load_read_bytes_total", "Bytes read from the object store or files.", func() float64 { return float64(store.Stats().Bytes) })
	m.Counter("objstore_requests_total", "Requests to the object store.", func() float64 { return float64(store.Stats().Requests) })
	m.Counter("objstore_retries_total", "Requests to the object store that were tried again.", func() float64 { return float64(store.Stats().Retries) })
	m.Counter("objstore_failures_total", "Reads from the object store that failed for good.", func() float64 { return float64(store.Stats().Failures) })
	m.Counter("load_cached_bytes_total", "Bytes read from the object cache.", func() float64 { return float64(store.Stats().CacheBytes) })
	m.Counter("object_cache_hits_total", "Reads that the object cache served.", func() float64 { return float64(store.Stats().CacheHits) })
	m.Counter("object_cache_misses_total", "Blocks that the object cache did not have.", func() float64 { return float64(store.Stats().CacheMisses) })
	m.Counter("object_cache_failures_total", "Requests to the object cache that failed, and answers of it that were damaged.", func() float64 { return float64(store.Stats().CacheFailures) })
	m.Gauge("memory_used_bytes", "Bytes reserved now, for rows, loading and clients.", func() float64 { return float64(b.Used()) })
	m.Gauge("memory_clients_bytes", "Bytes of them reserved for clients: connections, requests, streams, answers.", func() float64 { return float64(b.Clients().Used()) })
	m.Gauge("memory_peak_bytes", "Most bytes ever reserved.", func() float64 { return float64(b.Peak()) })
	m.Gauge("memory_limit_bytes", "The memory limit.", func() float64 { return float64(b.Limit()) })
}

// announce prints the line that scripts wait for.
func (f *serveFlags) announce() { fmt.Println("ready " + f.addresses()) }

// addresses returns the URLs of Arrow Flight and, if it is served, of HTTP.
func (f *serveFlags) addresses() string {
	line := fmt.Sprintf("%s://%s", f.TLS.Scheme(), opshttp.Reachable(f.Flight.Addr()))
	if f.HTTP != nil {
		line += " http://" + opshttp.Reachable(f.HTTP.Addr())
	}
	return line
}
