// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubeflow/datacache/objectcache/budget"
	"github.com/kubeflow/datacache/objectcache/identity"
	"github.com/kubeflow/datacache/objectcache/router"
)

// PeerPath is the path below which HandlePeers' handler answers on the port for objects.
const PeerPath = "/v1/mirror/"

// askedAliveAfter is aliveAfter for Ask. A member that is merely busy must not be taken for dead: the caller would ask a server far away.
const askedAliveAfter = 5 * time.Second

// HandlePeers sets the handler of requests below PeerPath. They come from Ask of other object caches, or from anybody who reaches the
// port: the handler authorizes them. Call it before Serve.
func (s *Server) HandlePeers(h http.Handler) { s.peers = h }

// Ask sends a request to another member, whose scheme and address it fills in, and returns its response. It ends the request when the
// member fails a probe, as when objects are forwarded, and fails at once while requests to the member are suspended. The caller closes
// the response's body.
func (s *Server) Ask(r *http.Request, to router.Member) (*http.Response, error) {
	return s.ask(r, to, s.metrics.forwarded)
}

// ask is Ask; count counts the request by outcome, as forwards_total does.
func (s *Server) ask(r *http.Request, to router.Member, count func(outcome string)) (*http.Response, error) {
	if s.backoff.active(to) {
		count(outcomeSpared)
		return nil, errDead
	}
	if err := s.cfg.Memory.Take(r.Context(), connectionMemory); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	out := r.WithContext(ctx)
	out.URL.Scheme, out.URL.Host = s.scheme(), to.Address
	go s.watchMember(ctx, cancel, to, askedAliveAfter)
	response, err := s.patient.RoundTrip(out)
	if err != nil {
		count(outcomeFailed)
		s.forwardError(r.Context(), to, err)
		cancel(nil)
		s.cfg.Memory.Put(connectionMemory)
		return nil, err
	}
	count(outcomeAnswered)
	response.Body = &askedBody{ReadCloser: response.Body, end: sync.OnceFunc(func() {
		cancel(nil)
		s.cfg.Memory.Put(connectionMemory)
	})}
	return response, nil
}

// askedBody stops the probes of the member, and returns the request's memory, when the body is closed.
type askedBody struct {
	io.ReadCloser
	end func()
}

// Close closes the body.
func (b *askedBody) Close() error {
	b.end()
	return b.ReadCloser.Close()
}

// Memory is the budget of requests.
func (s *Server) Memory() *budget.Budget { return s.cfg.Memory }

// FromPeer reports whether a request comes from the address of another object cache.
func (s *Server) FromPeer(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	return err == nil && s.cfg.Router.HasHost(host)
}

// Review returns the owner of a token that came with the request; the answer is cached.
func (s *Server) Review(r *http.Request, token string) (identity.Identity, error) {
	return s.reviewer.Review(sourceOf(r), token)
}

// CountRead counts a mirror's read of something in a bucket, which was on this node or was not.
func (s *Server) CountRead(bucket string, found bool) {
	if found {
		s.metrics.hit(bucket)
	} else {
		s.metrics.miss(bucket)
	}
}

// CountSent counts bytes of a mirror's bucket that were sent from this node.
func (s *Server) CountSent(bucket string, n int64) { s.metrics.sent(bucket, n) }

// CountReceived counts bytes for a mirror's bucket that this node received from upstream.
func (s *Server) CountReceived(bucket string, n int64) { s.metrics.received(bucket, n) }

// Register adds metrics to those of Metrics.
func (s *Server) Register(all ...prometheus.Collector) { s.metrics.registry.MustRegister(all...) }
