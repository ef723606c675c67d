// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package head is the coordinator of a cache: it plans the table, assigns the splits to the data nodes, monitors them, tells clients
// which nodes have their rows, and issues tickets.
package head

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"github.com/kubeflow/datacache/cacheserver/head/packing"
	"github.com/kubeflow/datacache/cacheserver/head/puts"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/retry"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/transport"
	"github.com/kubeflow/datacache/cacheserver/work"
	"github.com/kubeflow/datacache/internal/tracing"
)

// Head is the head of one cache. Make it with New, run it with Start; it is safe for concurrent use.
type Head struct {
	cfg     Config
	cluster *cluster
	service *service
}

// New checks the configuration and makes a head that has not started.
func New(cfg Config) (*Head, error) {
	if cfg.Nodes < 1 || cfg.Nodes > MostNodes {
		return nil, fmt.Errorf("nodes: %d, want 1 to %d data nodes", cfg.Nodes, MostNodes)
	}
	if err := protocol.ValidKeep(cfg.PutKeep); err != nil {
		return nil, fmt.Errorf("put-keep: %w", err)
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
	incarnation := make([]byte, 8)
	_, _ = rand.Read(incarnation) // likewise
	now := time.Now()
	h := &Head{cfg: cfg, cluster: &cluster{
		limits: limits{started: now, silence: cfg.NodeTimeout, join: cfg.JoinTimeout, load: cfg.LoadTimeout}, salt: salt, moved: make(chan struct{}, 1),
		state: state{incarnation: hex.EncodeToString(incarnation), members: make(members, cfg.Nodes), data: newDataset(request, cfg.Nodes, now), storeTrouble: cfg.Store.Trouble},
	}}
	h.cluster.data.first = cfg.FirstEpoch
	h.cluster.puts = newDatasets(h.cluster, cfg.Nodes, cfg.Budget)
	h.service = &service{
		Flight: transport.Flight{Status: h.Status, Sizing: h.sizing, Admit: cfg.Access.Admit()}, cfg: &h.cfg, cluster: h.cluster,
		sealer: protocol.NewSealer(peer.TicketKey(cfg.Secret, salt)), checks: work.New(runtime.GOMAXPROCS(0)), room: semaphore.NewWeighted(answersMemory),
		windows: packing.New(cfg.Budget.Clients()),
		puts: puts.Service{
			Enabled: cfg.Puts, Keep: cfg.PutKeep, Cluster: h.cluster.puts, Signer: protocol.NewSigner(peer.PutKey(cfg.Secret)), Access: cfg.Access, TLS: cfg.TLS, Log: cfg.Log, Memory: cfg.Budget.Clients(),
			Tables: cfg.Tables,
		},
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
			transport.RegisterFlight(server, h.service)
			peer.Register(server, h.cfg.Secret, h.serveNode)
		},
		Tasks: []func(context.Context) error{h.keepPlan, h.keepHeld, h.keepTime},
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
	p, err := h.makePlan(ctx, nil, h.cfg.Nodes)
	if err != nil {
		return err
	}
	h.cfg.Log.Info("planned", "table", h.table(), "snapshot", p.dataset.Snapshot, "splits", len(p.splits))
	h.cluster.setPlan(p, time.Now())
	return nil
}

// makePlan plans the table for a number of data nodes: its current version or, unless pin is nil, that of pin.
func (h *Head) makePlan(ctx context.Context, pin json.RawMessage, nodes int) (*tablePlan, error) {
	by := &source.Planning{
		Progress: func(done, total int) { h.cluster.planning(done, total, time.Now()) },
		Cut:      func(splits []source.Split) []source.Split { return CutSplits(splits, nodes) },
	}
	if !h.cfg.OneProcess {
		by.Others = h.others
	}
	p, err := h.cfg.Source.Plan(ctx, pin, by)
	h.cfg.Store.Idle() // a head needs the connections only for planning
	if err != nil {
		return nil, err
	}
	if err := h.cfg.checkPlan(nodes, len(p.Splits)); err != nil {
		return nil, err
	}
	return newPlan(p, nodes)
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
			for _, name := range h.cluster.tick(now) {
				h.cfg.Log.Warn("a put was given up: no part came for its ttl_s", "name", name)
			}
		}
	}
}

// Ready implements opshttp.Server.
func (h *Head) Ready() (bool, string) {
	h.cluster.mu.Lock()
	defer h.cluster.mu.Unlock()
	state, reason := h.cluster.overall()
	return state == protocol.StateReady, fmt.Sprintf("%s: %s", state, reason)
}

// Status implements opshttp.Server; the value is a Status.
func (h *Head) Status() any { return h.Report() }

// Report returns the current status of the cache.
func (h *Head) Report() protocol.Status {
	s := h.cluster.status(h.table())
	s.Access = h.cfg.Access.Status()
	return s
}

// table is the table's name for messages, as given in the configuration.
func (h *Head) table() string {
	return h.cfg.Source.String()
}
