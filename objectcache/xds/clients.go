// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"context"
	"log/slog"
	"sync"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	"github.com/prometheus/client_golang/prometheus"
	status "google.golang.org/genproto/googleapis/rpc/status"
)

// kinds are the label values of resource types; all others, which clients may ask for, are counted as "other".
var kinds = map[string]string{
	resource.ListenerType: "listener", resource.RouteType: "route", resource.ClusterType: "cluster", resource.EndpointType: "endpoints",
}

// clients observes the streams of clients: it logs and counts configuration that they reject (NACK). It is a prometheus.Collector and
// may be shared. The callbacks of one stream don't overlap.
type clients struct {
	log      *slog.Logger
	rejected *prometheus.CounterVec
	streams  prometheus.Gauge

	mu   sync.Mutex
	open map[streamID]*stream
}

var (
	_ sotw.Callbacks       = (*clients)(nil)
	_ delta.Callbacks      = (*clients)(nil)
	_ prometheus.Collector = (*clients)(nil)
)

// streamID identifies a stream; the two variants number theirs separately.
type streamID struct {
	delta  bool
	number int64
}

// stream is the state of one client's stream.
type stream struct {
	node string
	sent map[string]string // state of the world only: the last version that was sent, by type
}

func newClients(log *slog.Logger) *clients {
	c := &clients{
		log: log, open: map[streamID]*stream{},
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "datacache_xds", Name: "rejected_total", Help: "Updates that an xDS client rejected, by type of resource.",
		}, []string{"type"}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "datacache_xds", Name: "streams", Help: "xDS clients that are connected to this object cache.",
		}),
	}
	for _, kind := range kinds {
		c.rejected.WithLabelValues(kind)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *clients) Describe(to chan<- *prometheus.Desc) {
	c.rejected.Describe(to)
	c.streams.Describe(to)
}

// Collect implements prometheus.Collector.
func (c *clients) Collect(to chan<- prometheus.Metric) {
	c.rejected.Collect(to)
	c.streams.Collect(to)
}

func (c *clients) opened(id streamID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[id] = &stream{sent: map[string]string{}}
	c.streams.Inc()
}

func (c *clients) closed(id streamID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, id)
	c.streams.Dec()
}

func (c *clients) stream(id streamID) *stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open[id]
}

// requested records a client's Node, which only its first request must have, and reports whether the request rejects an update.
func (c *clients) requested(of *stream, node *core.Node, typeURL string, problem *status.Status) (isNACK bool) {
	if node.GetId() != "" {
		of.node = node.GetId()
	}
	if problem == nil {
		return false
	}
	kind, known := kinds[typeURL]
	if !known {
		kind = "other"
	}
	c.rejected.WithLabelValues(kind).Inc()
	c.log.Error("an xDS client rejected an update and keeps what it had", "node", of.node, "type", kind, "error", problem.GetMessage())
	return true
}

// OnStreamOpen implements sotw.Callbacks.
func (c *clients) OnStreamOpen(_ context.Context, number int64, _ string) error {
	c.opened(streamID{number: number})
	return nil
}

// OnStreamClosed implements sotw.Callbacks.
func (c *clients) OnStreamClosed(number int64, _ *core.Node) { c.closed(streamID{number: number}) }

// OnStreamRequest implements sotw.Callbacks. A NACK has the version before the rejected one, upon which the cache would send the
// rejected one again, at once and without end. With the rejected version, the client gets the next one that differs.
func (c *clients) OnStreamRequest(number int64, r *discovery.DiscoveryRequest) error {
	of := c.stream(streamID{number: number})
	if c.requested(of, r.GetNode(), r.GetTypeUrl(), r.GetErrorDetail()) {
		r.VersionInfo = of.sent[r.GetTypeUrl()]
	}
	return nil
}

// OnStreamResponse implements sotw.Callbacks.
func (c *clients) OnStreamResponse(_ context.Context, number int64, _ *discovery.DiscoveryRequest, r *discovery.DiscoveryResponse) {
	c.stream(streamID{number: number}).sent[r.GetTypeUrl()] = r.GetVersionInfo()
}

// OnDeltaStreamOpen implements delta.Callbacks.
func (c *clients) OnDeltaStreamOpen(_ context.Context, number int64, _ string) error {
	c.opened(streamID{delta: true, number: number})
	return nil
}

// OnDeltaStreamClosed implements delta.Callbacks.
func (c *clients) OnDeltaStreamClosed(number int64, _ *core.Node) {
	c.closed(streamID{delta: true, number: number})
}

// OnStreamDeltaRequest implements delta.Callbacks.
func (c *clients) OnStreamDeltaRequest(number int64, r *discovery.DeltaDiscoveryRequest) error {
	c.requested(c.stream(streamID{delta: true, number: number}), r.GetNode(), r.GetTypeUrl(), r.GetErrorDetail())
	return nil
}

// OnStreamDeltaResponse implements delta.Callbacks.
func (c *clients) OnStreamDeltaResponse(int64, *discovery.DeltaDiscoveryRequest, *discovery.DeltaDiscoveryResponse) {
}
