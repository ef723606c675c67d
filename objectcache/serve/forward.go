// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubeflow/datacache/objectcache/router"
	"github.com/kubeflow/datacache/objectcache/store"
)

// hopHeader marks a forwarded request. The receiver serves it whichever member owns the key in its view, so members with
// different views never forward a request in circles. A client that sets it reaches only the objects of the node it asks.
const hopHeader = "Datacache-Hop"

// Header fields that are copied when a request is forwarded and when its response is returned.
var (
	passedOn   = []string{"Authorization", "Content-Type", "Content-Range", "Range", "If-Range"}
	passedBack = []string{"Accept-Ranges", "Allow", "Content-Length", "Content-Range", "Content-Type", "Retry-After", "Www-Authenticate"}
)

// newTransport connects to other object caches. Its idle timeout is shorter than the server's, so that a request is not sent
// on a connection that the server is closing.
func newTransport(l limits, t *TLS) *http.Transport {
	return &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
		TLSClientConfig:       t.client(),
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       l.idle * 3 / 4,
		ResponseHeaderTimeout: l.stall,
		DisableCompression:    true,
		WriteBufferSize:       connectionBuffer,
		ReadBufferSize:        connectionBuffer,
	}
}

const (
	connectionBuffer = 64 << 10
	// connectionMemory is what a request to another object cache takes: the connection's two buffers, and one of package io.
	connectionMemory = 3 * connectionBuffer
)

// forward sends the request to the member that owns the key. That member reviews the token again: the hop header grants nothing.
// While a member can't be reached, reads of its keys are misses; its keys move to other members when its endpoint is no longer ready.
func (s *Server) forward(r *request, to router.Member) {
	out := (&http.Request{
		Method: r.Method, Host: to.Address, ContentLength: r.ContentLength, Body: r.Body,
		// Opaque is not re-encoded.
		URL:    &url.URL{Scheme: s.scheme(), Host: to.Address, Opaque: r.RequestURI},
		Header: http.Header{hopHeader: {"1"}, "User-Agent": {""}},
	})
	if r.ContentLength == 0 {
		out.Body = http.NoBody
	}
	copyHeaders(out.Header, r.Header, passedOn)
	if s.backoff.active(to) {
		s.metrics.forwarded(outcomeSpared)
		s.unreachable(r)
		return
	}
	buf, err := s.cfg.Memory.Buffer(r.Context(), connectionMemory)
	if err != nil {
		r.busy()
		return
	}
	defer buf.Free()
	body := &forwardedBody{ReadCloser: out.Body}
	if out.Body != http.NoBody {
		out.Body = body
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	go s.watchMember(ctx, cancel, to, aliveAfter)
	response, err := s.transport.RoundTrip(out.WithContext(ctx))
	if err != nil {
		s.forwardFailed(ctx, r, to, body, err)
		return
	}
	defer response.Body.Close()
	s.metrics.forwarded(outcomeAnswered)
	if response.Header.Get(layoutHeader) != "" {
		s.getForwardedParts(r, response.Body)
		return
	}
	copyHeaders(r.answer.Header(), response.Header, passedBack)
	_ = r.control.SetWriteDeadline(time.Now().Add(s.limits.bodyTime(max(response.ContentLength, 0))))
	r.answer.WriteHeader(response.StatusCode)
	_, _ = relay(r.answer.ResponseWriter, response.Body, buf.Bytes) // the client notices a body shorter than its Content-Length
}

// relay copies another member's response in large steps: each takes two system calls.
func relay(to io.Writer, from io.Reader, buf []byte) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, buf) // hides ReadFrom, which would ignore buf
}

// errDead cancels requests to a member that failed a probe.
var errDead = errors.New("the member does not answer")

// forwardFailed answers a request for which the member sent no response. Requests to a member are suspended only if it accepts no
// connections or fails a probe: an error in the client's body is no evidence against the member.
func (s *Server) forwardFailed(ctx context.Context, r *request, to router.Member, body *forwardedBody, err error) {
	s.metrics.forwarded(outcomeFailed)
	s.cfg.Log.Debug("forward failed", "member", to.Name, "error", err)
	_ = r.control.SetWriteDeadline(time.Now().Add(s.limits.stall)) // the deadline set for the request may have expired
	dead := errors.Is(context.Cause(ctx), errDead)
	if !dead && body.broken.Load() {
		r.brokenBody("it ended early or came too slowly")
		return
	}
	s.forwardError(r.Context(), to, err)
	s.unreachable(r)
}

// forwardError suspends requests to a member if it accepted no connection. client is the context of the request.
func (s *Server) forwardError(client context.Context, to router.Member, err error) {
	var dial *net.OpError
	if client.Err() == nil && errors.As(err, &dial) && dial.Op == "dial" {
		s.backoff.set(to)
	}
}

// forwardedBody records whether reading the client's body failed.
type forwardedBody struct {
	io.ReadCloser
	broken atomic.Bool
}

// Read reads from the body.
func (b *forwardedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.broken.Store(true)
	}
	return n, err
}

const (
	// alivePath is answered without access to the disk or the API server.
	alivePath = "/v1/alive"
	// aliveAfter is how long a forwarded request runs before the member's alivePath is probed, and the probe's timeout. A
	// request that merely takes long, such as one whose object is being verified, continues.
	aliveAfter = 500 * time.Millisecond
	// aliveEvery is the interval of later probes.
	aliveEvery = 2 * time.Second
)

// watchMember cancels a request with errDead when the member fails a probe. The first one is sent after a time, which is also its
// timeout. It returns when ctx ends.
func (s *Server) watchMember(ctx context.Context, cancel context.CancelCauseFunc, to router.Member, after time.Duration) {
	wait := time.NewTimer(after)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
		}
		if !s.isAlive(ctx, to, after) {
			if ctx.Err() == nil {
				s.backoff.set(to)
				cancel(errDead)
			}
			return
		}
		wait.Reset(aliveEvery)
	}
}

func (s *Server) isAlive(ctx context.Context, to router.Member, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.scheme()+"://"+to.Address+alivePath, nil)
	if err != nil {
		return false
	}
	response, err := s.transport.RoundTrip(r)
	if err != nil {
		return false
	}
	return response.Body.Close() == nil
}

// backoffTime is how long requests to a failed member are suspended: the endpoint of a machine that died stays ready until the
// cluster notices.
const backoffTime = 5 * time.Second

// by Member: time.Time
type backoff struct{ until sync.Map } // by Member: time.Time

func (b *backoff) set(m router.Member) { b.until.Store(m, time.Now().Add(backoffTime)) }

func (b *backoff) active(m router.Member) bool {
	until, known := b.until.Load(m)
	return known && time.Now().Before(until.(time.Time)) //nolint:forcetypeassert // set stores no other type
}

// unreachable answers in place of a member that can't be reached.
func (s *Server) unreachable(r *request) {
	r.answer.Header().Set("Retry-After", strconv.Itoa(int(backoffTime.Seconds()))) // distinguishes this miss from one that a PUT would fill
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		r.refuse(http.StatusNotFound, store.ErrMiss.Error()+": the node that would have it does not answer")
		return
	}
	r.answer.Header().Set("Connection", "close") // the rest of the body is not read
	r.refuse(http.StatusServiceUnavailable, "the node that has this key does not answer")
}

func copyHeaders(to, from http.Header, names []string) {
	for _, name := range names {
		if values, ok := from[name]; ok {
			to[name] = values
		}
	}
}
