// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/kubeflow/datacache/objectcache/buckets"
	"github.com/kubeflow/datacache/objectcache/mirror/content"
	"github.com/kubeflow/datacache/objectcache/mirror/hub"
	"github.com/kubeflow/datacache/objectcache/mirror/oci"
	"github.com/kubeflow/datacache/objectcache/mirror/upstream"
	"github.com/kubeflow/datacache/objectcache/router"
	"github.com/kubeflow/datacache/objectcache/serve"
	"github.com/kubeflow/datacache/objectcache/store"
)

// Options are what a Mirror works with. All fields are required.
type Options struct {
	Config  func() Config // the current one
	Store   *store.Store
	Buckets func() buckets.Config // the current one
	Router  *router.Router
	Objects *serve.Server // Mirror registers a handler and metrics there
	Log     *slog.Logger
}

// Mirror serves the mirrors of a Config. Create it with New.
type Mirror struct {
	o     Options
	cache *content.Cache
	hub   *hub.Hub
	oci   *oci.Registry
}

// New returns a Mirror and makes the object cache pass requests of other mirrors to it. Call it before the object cache serves.
func New(o Options) *Mirror {
	metrics := content.NewMetrics(hub.Kind, oci.Kind)
	o.Objects.Register(metrics.Collectors()...)
	cache := content.New(content.Config{Store: o.Store, Buckets: o.Buckets, Router: o.Router, Peers: o.Objects.Peers, Metrics: metrics, Log: o.Log})
	client := upstream.New()
	m := &Mirror{o: o, cache: cache}
	m.hub = hub.New(hub.Options{
		Config: func() hub.Config { return o.Config().Hub }, Cache: cache, Metrics: metrics, Upstream: client, Review: o.Objects.Review, Log: o.Log,
	})
	m.oci = oci.New(oci.Options{
		Config: func() oci.Config { return o.Config().Images }, Cache: cache, Metrics: metrics, Upstream: client, FromPeer: o.Objects.Peers.Sent, Log: o.Log,
	})
	o.Objects.HandlePeers(http.HandlerFunc(m.servePeer))
	return m
}

// Check returns an error if a bucket of the current Config is not one of the mirrors'.
func (m *Mirror) Check() error {
	c := m.o.Config()
	for field, name := range map[string]string{"hub.bucket": c.Hub.Bucket, "images.bucket": c.Images.Bucket} {
		if name != "" && !m.o.Buckets().Buckets[name].Mirror {
			return fmt.Errorf("%s: %q is not a bucket with Mirror: true: add it to the buckets file", field, name)
		}
	}
	return nil
}

// ServeHTTP answers a client.
func (m *Mirror) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.serve(w, r, false) }

// servePeer answers another object cache.
func (m *Mirror) servePeer(w http.ResponseWriter, r *http.Request) {
	if content.IsPeerPath(r.URL.Path) {
		m.cache.ServePeer(w, r)
		return
	}
	prefix := strings.TrimSuffix(serve.PeerPath, "/")
	http.StripPrefix(prefix, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, true) })).ServeHTTP(w, r)
}

func (m *Mirror) serve(w http.ResponseWriter, r *http.Request, fromPeer bool) {
	if ready, reason := m.o.Objects.Ready(); !ready {
		w.Header().Set("Retry-After", "1")
		http.Error(w, reason, http.StatusServiceUnavailable)
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // that of the connection's last request; fails only without deadlines
	switch path := r.URL.Path; {
	case strings.HasPrefix(path, hub.Prefix+"/"):
		m.hub.Serve(w, r, fromPeer)
	case strings.HasPrefix(path, oci.Prefix):
		m.oci.Serve(w, r, fromPeer)
	default:
		http.Error(w, "want a path below "+hub.Prefix+"/ or "+oci.Prefix, http.StatusNotFound)
	}
}

// Serve serves on the listener until ctx ends; running requests then have the object cache's grace to finish. It closes the listener.
func (m *Mirror) Serve(ctx context.Context, on net.Listener) error {
	return m.o.Objects.ServeMirrors(ctx, on, m)
}
