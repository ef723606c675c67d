// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package head is the coordinator of a cache: it plans the table, assigns the splits to the data nodes, monitors them, tells clients
// which nodes have their rows, and issues tickets.
package head

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"time"

	"google.golang.org/grpc"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/retry"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/transport"
	"github.com/kubeflow/datacache/cacheserver/work"
	"github.com/kubeflow/datacache/internal/tracing"
)

// Config configures a head. Fields without a comment are required.
type Config struct {
	role.Config
	Nodes int // number of data nodes, at least 1
	// OneProcess says that head and data nodes are one process and share Budget, so that the page shows it once.
	OneProcess bool
	// FilterComparisons is how many comparisons evaluating a filter may take on a data node: its terms times the node's rows. 0: 10^11.
	FilterComparisons int64

	TicketTTL   time.Duration // how long a ticket may be used to start a stream; 0: one hour
	NodeTimeout time.Duration // time without a message after which a node counts as lost; 0: ten seconds
	JoinTimeout time.Duration // time limit for every node to join once; 0: ten minutes
	LoadTimeout time.Duration // time that a first load may make no progress; 0: 15 minutes
}

// FilterComparisons is the default of Config.FilterComparisons: one to two minutes of a core.
const FilterComparisons = 100_000_000_000

// Head is the head of one cache. Make it with New, run it with Start; it is safe for concurrent use.
type Head struct {
	cfg     Config
	sealer  protocol.Sealer
	cluster *cluster
	checks  *work.Pool // of filters
}

// New checks the configuration and makes a head that has not started.
func New(cfg Config) (*Head, error) {
	if cfg.Nodes < 1 {
		return nil, fmt.Errorf("nodes: %d, want at least 1 data node", cfg.Nodes)
	}
	cfg.FilterComparisons = cmp.Or(cfg.FilterComparisons, FilterComparisons)
	cfg.TicketTTL = cmp.Or(cfg.TicketTTL, time.Hour)
	cfg.NodeTimeout = cmp.Or(cfg.NodeTimeout, 10*time.Second)
	cfg.JoinTimeout = cmp.Or(cfg.JoinTimeout, 10*time.Minute)
	cfg.LoadTimeout = cmp.Or(cfg.LoadTimeout, 15*time.Minute)
	request, err := fingerprintOf(cfg.Source.Request())
	if err != nil {
		return nil, err
	}
	salt := make([]byte, 32)
	_, _ = rand.Read(salt) // never fails
	h := &Head{cfg: cfg, sealer: protocol.NewSealer(peer.TicketKey(cfg.Secret, salt)), checks: work.New(runtime.GOMAXPROCS(0))}
	now := time.Now()
	h.cluster = &cluster{
		limits: limits{started: now, silence: cfg.NodeTimeout, join: cfg.JoinTimeout, load: cfg.LoadTimeout}, salt: salt,
		state: state{members: make(members, cfg.Nodes), data: newDataset(request, cfg.Nodes, now), storeTrouble: cfg.Store.Trouble},
	}
	return h, nil
}

// Start serves until ctx ends, then shuts down in order: not ready, sessions closed, running calls completed. If the cache fails,
// Start continues, so that the reason can be read.
func (h *Head) Start(ctx context.Context) error {
	defer context.AfterFunc(ctx, h.cluster.stop)()
	ctx = h.cluster.trace.start(ctx, h.cfg.Tracer, h.table(), h.cfg.Nodes)
	defer h.cluster.endTrace(errors.New("the head stopped"))
	return h.cfg.Serve(ctx, role.Role{
		Memory: h.cfg.Budget.Clients(), Status: h, Page: &pageSource{head: h},
		Register: func(server grpc.ServiceRegistrar) {
			transport.RegisterFlight(server, &service{Flight: transport.Flight{Status: h.Status}, head: h})
			peer.Register(server, h.cfg.Secret, h.serveNode)
		},
		Tasks: []func(context.Context) error{h.keepPlan, h.keepTime},
	})
}

// keepPlan plans the table, with retries after temporary errors, until there is a plan: its own, or one that a data node has brought.
func (h *Head) keepPlan(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		select {
		case <-h.cluster.data.planned:
		case <-ctx.Done():
		}
	}()
	traced, span := tracing.Child(ctx, "plan")
	err := retry.Do(traced, h.mayPass, h.cluster.planningTrouble, func() error { return h.planOnce(traced) })
	tracing.End(span, err)
	if err != nil && ctx.Err() == nil {
		h.cfg.Log.Error("planning failed", "reason", err)
		h.cluster.planningFailed(err.Error(), time.Now())
	}
	return nil
}

// mayPass reports whether an error of planning may be temporary.
func (h *Head) mayPass(err error) bool { return h.cfg.Source.Retry(err) == source.Soon }

func (h *Head) planOnce(ctx context.Context) error {
	p, err := h.makePlan(ctx)
	if err != nil {
		return err
	}
	encoded, err := encodeRecord(p, nil)
	if err != nil {
		return err
	}
	h.cfg.Log.Info("planned", "table", h.table(), "snapshot", p.dataset.Snapshot, "splits", len(p.Splits))
	h.cluster.setPlan(p, encoded, time.Now())
	return nil
}

// keepTime periodically checks for nodes that are silent or never joined.
func (h *Head) keepTime(ctx context.Context) error {
	ticker := time.NewTicker(min(time.Second, h.cfg.NodeTimeout/4))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			h.cluster.tick(now)
		}
	}
}

// Ready implements ops.Server.
func (h *Head) Ready() (bool, string) {
	s := h.Report()
	return s.State == protocol.StateReady, fmt.Sprintf("%s: %s", s.State, s.Reason)
}

// Status implements ops.Server; the value is a Status.
func (h *Head) Status() any { return h.Report() }

// Report returns the current status of the cache.
func (h *Head) Report() protocol.Status { return h.cluster.status(h.table()) }

// table is the table's name for messages, as given in the configuration.
func (h *Head) table() string {
	return h.cfg.Source.String()
}
