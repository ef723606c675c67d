// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/kubeflow/datacache/objectcache/budget"
	"github.com/kubeflow/datacache/objectcache/router"
)

// PeerPath is the path below which HandlePeers' handler answers on the port for objects.
const PeerPath = "/v1/mirror/"

const (
	// alivePath is answered without access to the disk or the API server.
	alivePath = "/v1/alive"
	// aliveAfter is how long a forwarded request runs before the member's alivePath is probed, and the probe's timeout. A
	// request that merely takes long, such as one whose object is being verified, continues.
	aliveAfter = 500 * time.Millisecond
	// askedAliveAfter is aliveAfter for Ask. A member that is merely busy must not be taken for dead: the caller would ask a server far away.
	askedAliveAfter = 5 * time.Second
	// aliveEvery is the interval of later probes.
	aliveEvery = 2 * time.Second
	// backoffTime is how long requests to a failed member are suspended: the endpoint of a machine that died stays ready until the
	// cluster notices.
	backoffTime = 5 * time.Second

	connectionBuffer = 64 << 10
	// connectionMemory is what a request to another object cache takes: the connection's two buffers, and one of package io.
	connectionMemory = 3 * connectionBuffer
)

// errDead cancels requests to a member that failed a probe.
var errDead = errors.New("the member does not answer")

// Peers sends requests to the other members. New creates one; it may be shared.
type Peers struct {
	router    *router.Router
	memory    *budget.Budget // of requests
	traffic   *Traffic
	scheme    string
	transport *http.Transport
	patient   *http.Transport // without a time limit for the response's header
	suspended sync.Map        // until when a member gets no requests, by Member: time.Time
	log       *slog.Logger
}

// newPeers returns the Peers of a server. Their connections' idle timeout is shorter than the server's, so that a request is not sent on a
// connection that the server is closing.
func newPeers(cfg Config, l limits, t *Traffic) *Peers {
	p := &Peers{
		router: cfg.Router, memory: cfg.Memory, traffic: t, scheme: "http", log: cfg.Log,
		transport: &http.Transport{
			DialContext:           (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
			TLSClientConfig:       cfg.TLS.client(),
			MaxIdleConnsPerHost:   64,
			IdleConnTimeout:       l.idle * 3 / 4,
			ResponseHeaderTimeout: l.Stall,
			DisableCompression:    true,
			WriteBufferSize:       connectionBuffer,
			ReadBufferSize:        connectionBuffer,
		},
	}
	if cfg.TLS != nil {
		p.scheme = "https"
	}
	p.patient = p.transport.Clone()
	p.patient.ResponseHeaderTimeout = 0
	return p
}

// Memory is the budget of requests.
func (p *Peers) Memory() *budget.Budget { return p.memory }

// Traffic counts the objects that are read and written.
func (p *Peers) Traffic() *Traffic { return p.traffic }

// Sent reports whether a request comes from the address of another object cache.
func (p *Peers) Sent(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	return err == nil && p.router.HasHost(host)
}

// Ask sends a request to another member, whose scheme and address it fills in, and returns its response. It ends the request when the
// member fails a probe, as when objects are forwarded, and fails at once while requests to the member are suspended. The caller closes
// the response's body.
func (p *Peers) Ask(r *http.Request, to router.Member) (*http.Response, error) {
	return p.ask(r, to, &p.traffic.forwards)
}

// ask is Ask; it counts the request's outcome in n.
func (p *Peers) ask(r *http.Request, to router.Member, n *outcomes) (*http.Response, error) {
	if p.isSuspended(to) {
		n.spared.Add(1)
		return nil, errDead
	}
	if err := p.memory.Take(r.Context(), connectionMemory); err != nil {
		return nil, err
	}
	response, err := p.send(r, to, p.patient, connectionMemory, n)
	if err != nil {
		p.noteFailure(r.Context(), to, err)
	}
	return response, err
}

// send sends a request to a member and counts its outcome in n. The member is probed until the response's body is closed; the error is
// errDead if a probe failed. Memory that the caller has taken is returned at the end.
func (p *Peers) send(r *http.Request, to router.Member, by *http.Transport, memory int64, n *outcomes) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	end := sync.OnceFunc(func() {
		cancel(nil)
		p.memory.Put(memory)
	})
	out := r.WithContext(ctx)
	out.URL.Scheme, out.URL.Host = p.scheme, to.Address
	after := aliveAfter
	if by == p.patient {
		after = askedAliveAfter
	}
	go p.watch(ctx, cancel, to, after)
	response, err := by.RoundTrip(out)
	if err != nil {
		n.failed.Add(1)
		if errors.Is(context.Cause(ctx), errDead) {
			err = errDead
		}
		end()
		return nil, err
	}
	n.answered.Add(1)
	response.Body = &watchedBody{ReadCloser: response.Body, end: end}
	return response, nil
}

// watchedBody is the body of a response of a member.
type watchedBody struct {
	io.ReadCloser
	end func()
}

// Close closes the body, and ends the probes of the member.
func (b *watchedBody) Close() error {
	b.end()
	return b.ReadCloser.Close()
}

// noteFailure suspends requests to a member if it accepted no connection. client is the context of the request.
func (p *Peers) noteFailure(client context.Context, to router.Member, err error) {
	var dial *net.OpError
	if client.Err() == nil && errors.As(err, &dial) && dial.Op == "dial" {
		p.suspend(to)
	}
}

func (p *Peers) suspend(m router.Member) { p.suspended.Store(m, time.Now().Add(backoffTime)) }

func (p *Peers) isSuspended(m router.Member) bool {
	until, known := p.suspended.Load(m)
	return known && time.Now().Before(until.(time.Time)) //nolint:forcetypeassert // suspend stores no other type
}

// watch cancels a request with errDead when the member fails a probe. The first one is sent after a time, which is also its timeout. It
// returns when ctx ends.
func (p *Peers) watch(ctx context.Context, cancel context.CancelCauseFunc, to router.Member, after time.Duration) {
	wait := time.NewTimer(after)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
		}
		if !p.isAlive(ctx, to, after) {
			if ctx.Err() == nil {
				p.suspend(to)
				cancel(errDead)
			}
			return
		}
		wait.Reset(aliveEvery)
	}
}

func (p *Peers) isAlive(ctx context.Context, to router.Member, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	response, err := p.get(ctx, to, alivePath)
	return err == nil && response.Body.Close() == nil
}

// get requests a path from a member, without probes.
func (p *Peers) get(ctx context.Context, to router.Member, path string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.scheme+"://"+to.Address+path, nil)
	if err != nil {
		return nil, err
	}
	return p.transport.RoundTrip(r)
}
