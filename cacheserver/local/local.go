// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package local runs a complete cache, a head and its data nodes, in one process: for notebooks, tests and the loader's development
// server. The parts communicate over loopback as they would in a cluster.
package local

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/cacheserver/fair"
	"github.com/kubeflow/datacache/cacheserver/head"
	"github.com/kubeflow/datacache/cacheserver/node"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/transport"
	"github.com/kubeflow/datacache/cacheserver/work"
)

// Config configures a local cache. Fields without a comment are required.
type Config struct {
	Flight net.Listener // the head's listener; data nodes listen on free ports of the same address
	HTTP   net.Listener // nil disables HTTP
	Nodes  int
	Budget *rows.Budget // shared by head and nodes
	// FilterMemory is the memory, in bytes, for the indexes of filters of all nodes; 0: a twentieth of the budget's limit.
	FilterMemory int64
	// FilterComparisons is that of head.Config.
	FilterComparisons int64
	Store             *objstore.Store
	Source            source.Source
	TLS               transport.TLS
	Transport         transport.Implementation // zero: transport.H2
	Grace             time.Duration            // how long calls may go on after a stop; 0: the defaults of head.Config and node.Config
	// LoadTimeout is how long a first load may make no progress because the store or the catalog is unavailable; 0: a minute, since a
	// user is waiting.
	LoadTimeout time.Duration
	Log         *slog.Logger
	Metrics     *ops.Metrics
	Tracer      trace.Tracer // of the load and of streams; nil: no spans are made
	Profiles    bool         // serve Go's profiles besides the metrics
	Turns       *fair.Queue  // of the nodes' streams; nil: without weights and limits
}

// Cache is a head with its data nodes. Make it with New, run it with Start.
type Cache struct {
	head  *head.Head
	nodes []*node.Node
}

// New opens the nodes' ports and makes head and nodes; it serves nothing before Start.
func New(ctx context.Context, cfg Config) (*Cache, error) {
	secret := rand.Text() // only this process knows it: no other node can join
	h, err := head.New(head.Config{
		Flight: cfg.Flight, HTTP: cfg.HTTP, Nodes: cfg.Nodes, Budget: cfg.Budget, Store: cfg.Store, Source: cfg.Source,
		Secret: secret, TLS: cfg.TLS, Transport: cfg.Transport, Grace: cfg.Grace, Log: cfg.Log, Metrics: cfg.Metrics,
		Tracer: cfg.Tracer, Profiles: cfg.Profiles, OneProcess: true, FilterComparisons: cfg.FilterComparisons, LoadTimeout: cmp.Or(cfg.LoadTimeout, time.Minute),
	})
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(cfg.Flight.Addr().String())
	if err != nil {
		return nil, fmt.Errorf("listen address: %w", err)
	}
	c := &Cache{head: h}
	decoding, filters := node.NewDecodeLimiter(), work.New(runtime.GOMAXPROCS(0))
	if cfg.Turns == nil {
		cfg.Turns = fair.New(node.Turns())
	}
	for i := range cfg.Nodes {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			return nil, fmt.Errorf("data node %d: %w", i, err)
		}
		n, err := node.New(node.Config{
			Index: i, Head: Reachable(cfg.Flight.Addr()), Advertise: Reachable(listener.Addr()), Flight: listener,
			Budget: cfg.Budget, FilterMemory: cmp.Or(cfg.FilterMemory, cfg.Budget.Limit()/20) / int64(cfg.Nodes), Store: cfg.Store, Source: cfg.Source,
			Workers: max(1, runtime.GOMAXPROCS(0)/cfg.Nodes), Decoding: decoding, Work: filters, Turns: cfg.Turns,
			Secret: secret, TLS: cfg.TLS, Transport: cfg.Transport, Grace: cfg.Grace, Log: cfg.Log.With("node", i), Metrics: cfg.Metrics, Tracer: cfg.Tracer,
		})
		if err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, n)
	}
	return c, nil
}

// Head returns the cache's head, whose status tells the state of the cache.
func (c *Cache) Head() *head.Head { return c.head }

// Start serves until ctx ends and open streams have finished.
func (c *Cache) Start(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.head.Start(ctx) })
	for _, n := range c.nodes {
		group.Go(func() error { return n.Start(ctx) })
	}
	return group.Wait()
}

// Reachable returns a listener's address as other processes on this machine can use it: if it means "all interfaces", it is replaced
// by loopback.
func Reachable(a net.Addr) string {
	host, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}
