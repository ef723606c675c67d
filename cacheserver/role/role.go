// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package role is what the servers of a cache, a head and its data nodes, have in common: their configuration, and how they start and
// stop.
package role

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/kubeflow/datacache/cacheserver/access"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/put/commit"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/transport"
	"github.com/kubeflow/datacache/internal/opshttp"
	"github.com/kubeflow/datacache/internal/watch"
)

// Config configures a server. Fields without a comment are required.
type Config struct {
	Flight net.Listener    // the server owns and closes it
	HTTP   net.Listener    // likewise; nil disables HTTP
	Budget *offheap.Budget // of a data node, for rows, loading and clients; of a head, for clients
	Store  *objstore.Store
	Source source.Source // a data node opens the version of it that the head names
	Tables commit.Tables // to which datasets that clients put are committed; required where clients may put some

	Secret    string                   // shared by head and data nodes, to authenticate each other; if empty, any node may join
	TLS       transport.TLS            // zero: plain text
	Access    *access.Guard            // who may read; nil: everybody
	Transport transport.Implementation // zero: transport.H2
	Grace     time.Duration            // time for running calls to end when stopping; 0: 20 seconds

	Log      *slog.Logger
	Metrics  *ops.Metrics
	Tracer   trace.Tracer // of loads and streams; nil: no spans are made
	Profiles bool         // serve Go's profiles beside the metrics
}

// Role is what a server serves and runs: a head's or a data node's services, status, page and background tasks.
type Role struct {
	Memory   transport.Memory            // for connections and requests
	Register func(grpc.ServiceRegistrar) // registers the services
	Status   opshttp.Server
	Page     watch.Source
	Tasks    []func(ctx context.Context) error // each runs until ctx ends; its error ends the server
}

// defaultGrace is the default of Config.Grace.
const defaultGrace = 20 * time.Second

// Serve serves until ctx ends or a task fails. Running calls may then end within the time of grace, and HTTP is served until they have.
func (c *Config) Serve(ctx context.Context, r Role) error {
	server, err := transport.NewServer(c.Transport, c.TLS.Named(c.Flight.Addr().String()), r.Memory, c.Metrics, c.Log)
	if err != nil {
		return err
	}
	r.Register(server)
	lastCtx, stopLast := context.WithCancel(context.WithoutCancel(ctx))
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer stopLast()
		return transport.Serve(groupCtx, server, c.Flight, cmp.Or(c.Grace, defaultGrace))
	})
	if c.HTTP != nil {
		page := watch.New(r.Page)
		handler := opshttp.Handler(r.Status, c.Metrics.Handler(), page)
		if c.Profiles {
			handler = opshttp.WithProfiles(handler)
		}
		group.Go(func() error { return opshttp.Serve(lastCtx, c.HTTP, handler) })
		group.Go(func() error { page.Run(lastCtx); return nil })
	}
	for _, task := range r.Tasks {
		group.Go(func() error { return task(groupCtx) })
	}
	return group.Wait()
}
