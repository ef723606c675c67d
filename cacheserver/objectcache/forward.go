// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/kubeflow/datacache/cacheserver/objectcache/router"
	"github.com/kubeflow/datacache/cacheserver/objectcache/store"
)

// hopHeader marks a request that was forwarded: it is served where it is, whoever has the key by the receiver's view. So
// members with different views never send a request round. A client that sets it reaches this node's objects alone.
const hopHeader = "Datacache-Hop"

// passedOn are the headers that an answer or a request keeps on its way through.
var (
	passedOn   = []string{"Authorization", "Content-Type", "Content-Range", "Range", "If-Range"}
	passedBack = []string{"Accept-Ranges", "Allow", "Content-Length", "Content-Range", "Content-Type", "Retry-After", "Www-Authenticate"}
)

// newTransport reaches other object caches. It keeps connections a little less long than Serve does, so that a body is not
// sent into one that is just being closed.
func newTransport(l limits) *http.Transport {
	return &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       l.idle * 3 / 4,
		ResponseHeaderTimeout: l.stall,
		DisableCompression:    true,
		WriteBufferSize:       64 << 10,
		ReadBufferSize:        64 << 10,
	}
}

// forward lets the member that has the key answer. The token goes along and is judged there again: the hop header is no key
// to anything. A member that can't be reached makes reads a miss, for a moment: its keys move when it is no longer ready.
func (s *Server) forward(r *request, to router.Member) {
	out := (&http.Request{
		Method: r.Method, Host: to.Address, ContentLength: r.ContentLength, Body: r.Body,
		// Opaque goes out as it came in, uncleaned.
		URL:    &url.URL{Scheme: "http", Host: to.Address, Opaque: r.RequestURI},
		Header: http.Header{hopHeader: {"1"}, "User-Agent": {""}},
	})
	if r.ContentLength == 0 {
		out.Body = http.NoBody
	}
	copyHeaders(out.Header, r.Header, passedOn)
	if s.resting.is(to) {
		s.metrics.forwarded("spared")
		s.unreachable(r)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go s.watchMember(ctx, cancel, to)
	response, err := s.transport.RoundTrip(out.WithContext(ctx))
	if err != nil {
		if r.Context().Err() == nil { // else it was the client who left
			s.resting.set(to)
		}
		s.metrics.forwarded("failed")
		s.cfg.Log.Debug("forward failed", "member", to.Name, "error", err)
		_ = r.control.SetWriteDeadline(time.Now().Add(s.limits.stall)) // the request may have outlasted its own
		s.unreachable(r)
		return
	}
	defer response.Body.Close()
	s.metrics.forwarded("answered")
	copyHeaders(r.answer.Header(), response.Header, passedBack)
	_ = r.control.SetWriteDeadline(time.Now().Add(s.limits.patience(max(response.ContentLength, 0))))
	r.answer.WriteHeader(response.StatusCode)
	_, _ = io.Copy(r.answer.ResponseWriter, response.Body) // cut short of its Content-Length, the client sees an error
	if ctx.Err() != nil && r.Context().Err() == nil {      // the member died in the middle
		s.resting.set(to)
	}
}

const (
	// alivePath is answered at once by every object cache, whatever its disk and the API server do.
	alivePath = "/v1/alive"
	// aliveAfter is how long a member may take for a request before it is asked whether it is alive, and how long it may
	// take to say so. A request that it answers late, such as one whose object is read against its checksum, goes on.
	aliveAfter = 500 * time.Millisecond
	// aliveEvery is how often it is asked again while the request lasts.
	aliveEvery = 2 * time.Second
)

// watchMember cancels a request that was sent on when the member no longer answers anything. It returns when ctx ends.
func (s *Server) watchMember(ctx context.Context, cancel context.CancelFunc, to router.Member) {
	wait := time.NewTimer(aliveAfter)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
		}
		if !s.isAlive(ctx, to) {
			cancel()
			return
		}
		wait.Reset(aliveEvery)
	}
}

func (s *Server) isAlive(ctx context.Context, to router.Member) bool {
	ctx, cancel := context.WithTimeout(ctx, aliveAfter)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+to.Address+alivePath, nil)
	if err != nil {
		return false
	}
	response, err := s.transport.RoundTrip(r)
	if err != nil {
		return false
	}
	return response.Body.Close() == nil
}

// restTime is how long a member that failed is not asked: a machine that is gone answers nothing at all, and its pod stays
// among the ready ones until the cluster notices.
const restTime = 5 * time.Second

// resting remembers which members failed lately. The zero value is good; it may be shared.
type resting struct{ until sync.Map } // by Member: time.Time

func (r *resting) set(m router.Member) { r.until.Store(m, time.Now().Add(restTime)) }

func (r *resting) is(m router.Member) bool {
	until, known := r.until.Load(m)
	return known && time.Now().Before(until.(time.Time)) //nolint:forcetypeassert // set stores nothing else
}

// unreachable answers for a member that did not.
func (s *Server) unreachable(r *request) {
	r.answer.Header().Set("Retry-After", strconv.Itoa(int(restTime.Seconds()))) // tells this miss from one that a PUT would mend
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		r.refuse(http.StatusNotFound, store.ErrMiss.Error()+": the node that would have it does not answer")
		return
	}
	r.answer.Header().Set("Connection", "close") // whatever of the body was not read
	r.refuse(http.StatusServiceUnavailable, "the node that has this key does not answer")
}

func copyHeaders(to, from http.Header, names []string) {
	for _, name := range names {
		if values, ok := from[name]; ok {
			to[name] = values
		}
	}
}
