// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package xds serves the object caches' configuration of Envoy and of gRPC clients over xDS: members in, snapshots out.
//
// It serves the aggregated discovery service (ADS) of xDS v3, both the delta and the state-of-the-world variant:
// https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol.
package xds

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	adslog "github.com/envoyproxy/go-control-plane/pkg/log"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/kubeflow/datacache/objectcache/router"
)

// gather is how long changes of the members are collected before they are published: endpoints change in bursts.
const gather = 200 * time.Millisecond

// Config configures a Server.
type Config struct {
	Listener netip.AddrPort // where Envoys accept clients
	TLS      *tls.Config    // of connections to the Server; nil: no TLS
	Objects  *ObjectTLS     // nil: object caches and Envoys serve objects without TLS
	Log      *slog.Logger
}

// ObjectTLS is how objects are served over TLS.
type ObjectTLS struct {
	Authorities func() string // the current authorities of object caches' certificates, PEM
	ServerName  string        // the DNS name in object caches' certificates
	// EnvoyCertificate is the path, in Envoys' file system, of an SDS resource called "objects" with the certificate that Envoys show to
	// their clients. Empty: clients reach Envoys without TLS.
	EnvoyCertificate string
}

// Server is an ADS server. Until SetMembers is called for the first time, clients wait. Create it with New; it may be shared.
type Server struct {
	cfg     Config
	cache   cache.SnapshotCache
	clients *clients
	members atomic.Pointer[[]router.Member]
	changed chan struct{} // capacity 1; has an element if members were set after the last publication
}

// New returns a Server.
func New(cfg Config) *Server {
	logger := adslog.LoggerFuncs{ // debug and info would log every request
		WarnFunc:  func(format string, args ...any) { cfg.Log.Warn("xds", "message", fmt.Sprintf(format, args...)) },
		ErrorFunc: func(format string, args ...any) { cfg.Log.Error("xds", "message", fmt.Sprintf(format, args...)) },
	}
	return &Server{
		cfg: cfg, clients: newClients(cfg.Log), changed: make(chan struct{}, 1),
		cache: cache.NewSnapshotCache(true, audiences{}, logger), // ads: resources are sent in the order in which they refer to each other
	}
}

// Collector returns the Server's metrics.
func (s *Server) Collector() prometheus.Collector { return s.clients }

// SetMembers replaces the members, all of which must be ready. It does not block. Having no members is a configuration too.
func (s *Server) SetMembers(members []router.Member) {
	s.members.Store(&members)
	s.Refresh()
}

// Refresh publishes the members again after ObjectTLS.Authorities changed. It does not block.
func (s *Server) Refresh() {
	select {
	case s.changed <- struct{}{}:
	default: // Serve will publish the latest
	}
}

// Serve serves on the listener, and publishes members, until ctx ends. It closes the listener.
func (s *Server) Serve(ctx context.Context, on net.Listener) error {
	options := []grpc.ServerOption{
		// Envoy's keepalive pings must be allowed. Clients that are gone without closing their connection are disconnected.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
	}
	if s.cfg.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(s.cfg.TLS)))
	}
	group, ctx := errgroup.WithContext(ctx)
	server := grpc.NewServer(options...)
	discovery.RegisterAggregatedDiscoveryServiceServer(server, &service{
		sotw: sotw.NewServer(ctx, s.cache, s.clients), delta: delta.NewServer(ctx, s.cache, s.clients),
	})
	group.Go(func() error {
		if err := server.Serve(on); err != nil {
			return fmt.Errorf("serve xDS on %s: %w", on.Addr(), err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		server.Stop()
		return nil
	})
	group.Go(func() error {
		s.publish(ctx)
		return nil
	})
	return group.Wait()
}

// publish publishes members until ctx ends.
func (s *Server) publish(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(gather):
		}
		select {
		case <-s.changed: // set during the wait, and read below
		default:
		}
		known := s.members.Load()
		if known == nil {
			continue // Refresh came before SetMembers
		}
		members := *known
		if err := s.set(ctx, members); err != nil && ctx.Err() == nil {
			s.cfg.Log.Error("members are not published over xDS", "error", err)
		}
	}
}

func (s *Server) set(ctx context.Context, members []router.Member) error {
	made, err := snapshots(members, s.cfg)
	if err != nil {
		return err
	}
	for who, snapshot := range made {
		if err := s.cache.SetSnapshot(ctx, string(who), snapshot); err != nil {
			return err
		}
	}
	s.cfg.Log.Debug("members published over xDS", "members", len(members), "version", made[envoys].GetVersion(resource.EndpointType))
	return nil
}

// service is the aggregated discovery service.
type service struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	sotw  sotw.Server
	delta delta.Server
}

// StreamAggregatedResources implements the state-of-the-world variant.
func (s *service) StreamAggregatedResources(stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return s.sotw.StreamHandler(stream, resource.AnyType)
}

// DeltaAggregatedResources implements the delta variant.
func (s *service) DeltaAggregatedResources(stream discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return s.delta.DeltaStreamHandler(stream, resource.AnyType)
}
