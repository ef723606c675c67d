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

	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/cacheserver/fair"
	"github.com/kubeflow/datacache/cacheserver/head"
	"github.com/kubeflow/datacache/cacheserver/node"
	"github.com/kubeflow/datacache/cacheserver/node/load"
	"github.com/kubeflow/datacache/cacheserver/node/serve"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/spill"
	"github.com/kubeflow/datacache/cacheserver/transport"
	"github.com/kubeflow/datacache/cacheserver/work"
	"github.com/kubeflow/datacache/internal/opshttp"
)

// Config configures a local cache. Fields without a comment are required.
type Config struct {
	role.Config // of the head; data nodes listen on free ports of the address of Flight, and share Budget; Secret is not used
	Nodes       int
	// FilterMemory is the memory, in bytes, for the indexes of filters of all nodes; 0: a twentieth of the budget's limit.
	FilterMemory int64
	// FilterComparisons is that of head.Config.
	FilterComparisons int64
	// LoadTimeout is how long a first load may make no progress because the store or the catalog is unavailable; 0: a minute, since a
	// user is waiting.
	LoadTimeout time.Duration
	FirstEpoch  *protocol.First // that of head.Config
	Puts        bool            // likewise
	PutKeep     string          // likewise
	// PutBudget is that of node.Config, for all nodes together.
	PutBudget *offheap.Budget
	// Spill returns where a node stores its rows too, until the cache stops, or nil; nil: none does.
	Spill func(node int) (*spill.Dir, error)
	Turns *fair.Queue // of the nodes' streams; nil: without weights and limits
}

// Cache is a head with its data nodes. Make it with New, run it with Start.
type Cache struct {
	head  *head.Head
	nodes []*node.Node
}

// New opens the nodes' ports and makes head and nodes; it serves nothing before Start.
func New(ctx context.Context, cfg Config) (*Cache, error) {
	cfg.Secret = rand.Text() // only this process knows it: no other node can join
	cfg.Log = slog.New(quiet{cfg.Log.Handler()})
	h, err := head.New(head.Config{
		Config: cfg.Config, Nodes: cfg.Nodes, OneProcess: true, FirstEpoch: cfg.FirstEpoch, Puts: cfg.Puts, PutKeep: cfg.PutKeep, FilterComparisons: cfg.FilterComparisons, LoadTimeout: cmp.Or(cfg.LoadTimeout, time.Minute),
	})
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(cfg.Flight.Addr().String())
	if err != nil {
		return nil, fmt.Errorf("listen address: %w", err)
	}
	c := &Cache{head: h}
	decoding, filters := load.NewLimiter(), work.New(runtime.GOMAXPROCS(0))
	if cfg.Turns == nil {
		cfg.Turns = fair.New(serve.Turns())
	}
	for i := range cfg.Nodes {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			return nil, fmt.Errorf("data node %d: %w", i, err)
		}
		own := cfg.Config
		own.Flight, own.HTTP, own.Log = listener, nil, slog.New(quiet{cfg.Log.With("node", i).Handler()})
		var dir *spill.Dir
		if cfg.Spill != nil {
			if dir, err = cfg.Spill(i); err != nil {
				return nil, err
			}
		}
		n, err := node.New(node.Config{
			Spill: dir, SpillRemoved: true, Sharers: cfg.Nodes, PutBudget: cfg.PutBudget,
			Config: own, Index: i, Head: opshttp.Reachable(cfg.Flight.Addr()), Advertise: opshttp.Reachable(listener.Addr()),
			FilterMemory: cmp.Or(cfg.FilterMemory, cfg.Budget.Limit()/20) / int64(cfg.Nodes),
			Workers:      max(1, runtime.GOMAXPROCS(0)/cfg.Nodes), Decoding: decoding, Work: filters, Turns: cfg.Turns,
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

// quiet passes on only warnings and panics, unless the log also takes debugging messages. In one process nobody needs to know how head and
// nodes find each other, and any other error fails the cache, whose state has the reason.
type quiet struct{ slog.Handler }

// Enabled implements slog.Handler.
func (q quiet) Enabled(ctx context.Context, level slog.Level) bool {
	return q.Handler.Enabled(ctx, level) && (level == slog.LevelWarn || level >= transport.LevelPanic || q.Handler.Enabled(ctx, slog.LevelDebug))
}
