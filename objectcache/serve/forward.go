// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"

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

// forward sends the request to the member that owns the key. That member reviews the token again: the hop header grants nothing.
// While a member can't be reached, reads of its keys are misses; its keys move to other members when its endpoint is no longer ready.
func (r *request) forward(to router.Member) {
	s := r.server
	if s.Peers.isSuspended(to) {
		s.traffic.forwards.spared.Add(1)
		r.unreachable()
		return
	}
	buf, err := s.cfg.Memory.Buffer(r.Context(), connectionMemory)
	if err != nil {
		r.busy()
		return
	}
	defer buf.Free()
	body := &forwardedBody{ReadCloser: r.Body}
	out := (&http.Request{
		Method: r.Method, Host: to.Address, ContentLength: r.ContentLength, Body: body,
		URL:    &url.URL{Opaque: r.RequestURI}, // it is not re-encoded
		Header: http.Header{hopHeader: {"1"}, "User-Agent": {""}},
	})
	if r.ContentLength == 0 || r.Body == http.NoBody {
		out.Body = http.NoBody
	}
	copyHeaders(out.Header, r.Header, passedOn)
	response, err := s.Peers.send(out.WithContext(r.Context()), to, s.Peers.transport, 0, &s.traffic.forwards)
	if err != nil {
		r.forwardFailed(to, body, err)
		return
	}
	defer response.Body.Close()
	if response.Header.Get(layoutHeader) != "" {
		if text, err := io.ReadAll(io.LimitReader(response.Body, maxLayout)); err != nil {
			r.unreachable()
		} else {
			r.sendParts(text)
		}
		return
	}
	copyHeaders(r.answer.Header(), response.Header, passedBack)
	s.limits.Extend(r.answer, max(response.ContentLength, 0))
	r.answer.WriteHeader(response.StatusCode)
	_, _ = relay(r.answer.ResponseWriter, response.Body, buf.Bytes) // the client notices a body shorter than its Content-Length
}

// relay copies another member's response in large steps: each takes two system calls.
func relay(to io.Writer, from io.Reader, buf []byte) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, buf) // hides ReadFrom, which would ignore buf
}

// forwardFailed answers a request for which the member sent no response. Requests to a member are suspended only if it accepts no
// connections or fails a probe: an error in the client's body is no evidence against the member.
func (r *request) forwardFailed(to router.Member, body *forwardedBody, err error) {
	r.server.cfg.Log.Debug("forward failed", "member", to.Name, "error", err)
	r.extendStall()
	if !errors.Is(err, errDead) && body.broken.Load() {
		r.brokenBody("it ended early or came too slowly")
		return
	}
	r.server.Peers.noteFailure(r.Context(), to, err)
	r.unreachable()
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

// unreachable answers in place of a member that can't be reached.
func (r *request) unreachable() {
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
