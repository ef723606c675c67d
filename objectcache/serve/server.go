// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package serve serves blobs from a node's disk over HTTP, authorized per bucket, and forwards requests for keys of other nodes.
package serve

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubeflow/datacache/internal/handshake"
	"github.com/kubeflow/datacache/internal/identity"
	"github.com/kubeflow/datacache/internal/opshttp"
	"github.com/kubeflow/datacache/internal/webpage"
	"github.com/kubeflow/datacache/objectcache/buckets"
	"github.com/kubeflow/datacache/objectcache/budget"
	"github.com/kubeflow/datacache/objectcache/router"
	"github.com/kubeflow/datacache/objectcache/store"
)

// Config configures a Server. All fields but Memory, Fixed, TLS, PartSize, Grace and Collectors are required.
type Config struct {
	Store   *store.Store
	Buckets func() buckets.Config // the current one
	// BucketsRejected says that the newest buckets file is invalid and Buckets returns an older one.
	BucketsRejected func() bool
	Reviewer        identity.Reviewer // the Server caches its answers
	Router          *router.Router
	Memory          *budget.Budget // of requests; nil: no limit
	// Fixed says that the members never change: then no other member ever stores an object whose key this one owns.
	Fixed bool
	TLS   *TLS // nil: no TLS
	// PartSize is the length in bytes above which an object is stored in parts of that length, on several members. 0: none is.
	PartSize int64
	// Grace is how long running requests may continue after the end of Serve's context.
	Grace      time.Duration
	Collectors []prometheus.Collector // metrics to serve with the Server's own
	Log        *slog.Logger
}

// Server answers requests for objects. It is the http.Handler of the port for clients and other object caches, and the
// opshttp.Server of the port for probes and metrics. Create it with New; it may be shared.
type Server struct {
	Peers      *Peers
	Membership *Membership

	cfg      Config
	reviewer identity.Reviewer
	traffic  Traffic
	metrics  *metrics
	limits   limits
	mirrors  http.Handler // of requests below PeerPath; nil: none
	disk     *diskLog
	waiting  atomic.Pointer[string]
}

var (
	_ http.Handler   = (*Server)(nil)
	_ opshttp.Server = (*Server)(nil)
)

// New returns a Server that answers 503 until Open is called.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, limits: defaultLimits, disk: &diskLog{log: cfg.Log, store: cfg.Store}}
	s.metrics = newMetrics(cfg, &s.traffic)
	s.Peers = newPeers(cfg, s.limits, &s.traffic)
	s.Membership = &Membership{
		router: cfg.Router, store: cfg.Store, peers: s.Peers, fixed: cfg.Fixed, slack: catchUpSlack, log: cfg.Log, disk: s.disk,
	}
	s.reviewer = identity.NewCache(identity.NewLimiter(timed{cfg.Reviewer, s.metrics.reviewSeconds}))
	s.Wait("starting")
	return s
}

// Wait makes requests fail with 503 and the reason.
func (s *Server) Wait(reason string) { s.waiting.Store(&reason) }

// Open starts admitting requests.
func (s *Server) Open() { s.waiting.Store(nil) }

// Ready reports whether requests are admitted.
func (s *Server) Ready() (bool, string) {
	if reason := s.waiting.Load(); reason != nil {
		return false, *reason
	}
	return true, "ready"
}

// Status is the value served at /status.
type Status struct {
	Ready   bool                `json:"ready"`
	Reason  string              `json:"reason"`
	Members int                 `json:"members"` // number of object caches that share the keys
	Buckets []store.BucketStats `json:"buckets"`
}

// Status describes the node and its buckets.
func (s *Server) Status() any {
	ready, reason := s.Ready()
	return Status{Ready: ready, Reason: reason, Members: s.cfg.Router.Members(), Buckets: s.cfg.Store.Stats()}
}

// Serve serves objects on the listener until ctx ends; running requests then have Config.Grace to finish. It closes the listener.
func (s *Server) Serve(ctx context.Context, on net.Listener) error {
	if err := s.serveHTTP(ctx, on, s); err != nil {
		return fmt.Errorf("objects: %w", err)
	}
	return nil
}

// ServeMirrors is Serve for a handler of clients of mirrors, who share the limits and the memory of clients of objects.
func (s *Server) ServeMirrors(ctx context.Context, on net.Listener, handler http.Handler) error {
	if err := s.serveHTTP(ctx, on, handler); err != nil {
		return fmt.Errorf("mirrors: %w", err)
	}
	return nil
}

func (s *Server) serveHTTP(ctx context.Context, on net.Listener, handler http.Handler) error {
	counted := s.cfg.Memory.Listen(on, headerBytes)
	server := s.newHTTP(counted.Handler(s.cfg.TLS.handler(handler)))
	server.ConnState, server.ConnContext = counted.NoteState, counted.Context
	failures := &handshake.Failures{Count: s.metrics.badHandshakes.Inc, Log: s.cfg.Log}
	return opshttp.ServeGracefully(ctx, server, s.cfg.TLS.listener(counted, s.limits, failures), s.cfg.Grace)
}

func (s *Server) newHTTP(handler http.Handler) *http.Server {
	return &http.Server{
		Handler: webpage.NoSniff(handler), ReadHeaderTimeout: s.limits.header, IdleTimeout: s.limits.idle, MaxHeaderBytes: headerBytes,
		DisableGeneralOptionsHandler: true, ErrorLog: slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
	}
}

// HandlePeers sets the handler of requests below PeerPath. They come from Peers.Ask of other object caches, or from anybody who reaches
// the port: the handler authorizes them. Call it before Serve.
func (s *Server) HandlePeers(h http.Handler) { s.mirrors = h }

// Review returns the owner of a token that came with the request; the answer is cached.
func (s *Server) Review(r *http.Request, token string) (identity.Identity, error) {
	return s.reviewer.Review(sourceOf(r), token)
}

// Register adds metrics to the Server's own.
func (s *Server) Register(all ...prometheus.Collector) { s.metrics.registry.MustRegister(all...) }
