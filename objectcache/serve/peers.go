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

// PeerPath is the prefix of the paths at which object caches serve each other's mirrors, on the port for objects.
const PeerPath = "/v1/mirror/"

const (
	// alivePath answers probes, without access to the disk or the API server.
	alivePath = "/v1/alive"
	// aliveAfter is how long a forwarded request runs before the member is probed at alivePath, and the timeout of a probe. A request that
	// takes longer continues as long as probes are answered.
	aliveAfter = 500 * time.Millisecond
	// askedAliveAfter is aliveAfter for Ask. It is longer, since the caller falls back to a distant server if the member seems dead.
	askedAliveAfter = 5 * time.Second
	// aliveEvery is the interval of later probes.
	aliveEvery = 2 * time.Second
	// backoffTime is how long no requests are sent to a failed member. Kubernetes lists the endpoint of a dead machine as ready for a while.
	backoffTime = 5 * time.Second

	connectionBuffer = 64 << 10
	// connectionMemory is the memory of a request to another object cache: the connection's two buffers, and one of package io.
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
	patient   *http.Transport // transport without ResponseHeaderTimeout
	suspended sync.Map        // router.Member to time.Time: until then it gets no requests
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

// Ask sends a request to another member and returns the response, whose body the caller closes. It sets the scheme and the address of the
// request's URL. It cancels the request if the member fails a probe, and fails at once while requests to the member are suspended.
func (p *Peers) Ask(r *http.Request, to router.Member) (*http.Response, error) {
	return p.ask(r, to, &p.traffic.forwards)
}

// ask is Ask that counts the outcome in n.
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

// send sends a request to a member and counts the outcome in n. It probes the member until the response's body is closed; the error is
// errDead if a probe failed. It then returns memory, which the caller has taken, to the budget.
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

// watchedBody is the body of a member's response; closing it ends the probes.
type watchedBody struct {
	io.ReadCloser
	end func()
}

// Close implements [io.Closer].
func (b *watchedBody) Close() error {
	b.end()
	return b.ReadCloser.Close()
}

// noteFailure suspends requests to a member if err says that no connection could be made. client is the context of the client's request.
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

// watch probes the member while a request runs, and cancels the request with errDead if a probe fails. The first probe is sent after the
// duration after, which is also the timeout of probes. It returns when ctx ends.
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

// get sends a GET request for a path to a member, without probing it.
func (p *Peers) get(ctx context.Context, to router.Member, path string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.scheme+"://"+to.Address+path, nil)
	if err != nil {
		return nil, err
	}
	return p.transport.RoundTrip(r)
}
