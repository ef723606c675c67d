// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/kubeflow/datacache/internal/identity"
)

// prefix is the path in front of bucket and key.
const prefix = "/v1/objects/"

// request is a request for an object, with its target parsed, and the response that is written to it.
type request struct {
	*http.Request
	bucket, key string
	server      *Server
	answer      *statusRecorder
	control     *http.ResponseController
}

// extendStall gives the client time to receive a short answer. The deadline that was set for the request may have expired.
func (r *request) extendStall() {
	r.server.limits.Extend(r.answer, 0)
}

// ServeHTTP answers a request for an object. It parses the raw request target: keys may contain "//", ".." and escapes, which
// http.ServeMux would redirect or resolve.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.RequestURI == alivePath {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if strings.HasPrefix(r.RequestURI, changesPath+"?") {
		s.Membership.serveChanges(w, r)
		return
	}
	if s.mirrors != nil && strings.HasPrefix(r.RequestURI, PeerPath) {
		s.mirrors.ServeHTTP(w, r)
		return
	}
	a := &statusRecorder{ResponseWriter: w}
	s.serve(&request{Request: r, server: s, answer: a, control: http.NewResponseController(w)})
	s.metrics.request(r.Method, a.status)
}

func (s *Server) serve(r *request) {
	r.extendStall()
	if r.Body != http.NoBody {
		r.Body = newRequestBody(r, s.limits)
	}
	var no *refusal
	if r.bucket, r.key, no = s.admit(sourceOf(r.Request), r.RequestURI, r.Header.Get("Authorization")); no != nil {
		no.answer(r)
		return
	}
	if r.key == "" { // a batch request
		r.serveBatch()
		return
	}
	if r.Header.Get(hopHeader) != "" && r.Header.Get(partHeader) != "" {
		r.servePart()
		return
	}
	if r.Method == http.MethodPut { // before the body is requested (100-continue) or forwarded
		if err := r.fits(); err != nil {
			r.refusePut(err)
			return
		}
	}
	if r.Header.Get(hopHeader) == "" {
		if member, elsewhere := s.cfg.Router.Elsewhere(r.bucket, r.key); elsewhere {
			r.forward(member)
			return
		}
	}
	if s.Membership.absent.Load() != nil {
		unavailable("asking the others what changed").answer(r)
		return
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		r.get()
	case http.MethodPut:
		r.put()
	case http.MethodDelete:
		r.delete()
	default:
		r.answer.Header().Set("Allow", "GET, HEAD, PUT, DELETE")
		r.refuse(http.StatusMethodNotAllowed, r.Method+" is not for objects")
	}
}

// parseTarget splits a raw request target. The key is everything after the bucket's slash.
func parseTarget(target string) (bucket, key string, ok bool) {
	rest, ok := strings.CutPrefix(target, prefix)
	if !ok {
		return "", "", false
	}
	bucket, key, _ = strings.Cut(rest, "/")
	return bucket, key, bucket != "" && key != ""
}

// sourceOf returns the request's context with its client's address as the source of its token.
func sourceOf(r *http.Request) context.Context {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	return identity.WithSource(r.Context(), host)
}

// admit authenticates and authorizes a request before any lookup, so that neither the response nor its timing depends on which
// objects exist.
func (s *Server) admit(ctx context.Context, target, authorization string) (bucket, key string, no *refusal) {
	bucket, key, ok := parseTarget(target)
	if name, isBatch := strings.CutSuffix(target, batchSuffix); isBatch && !strings.Contains(strings.TrimPrefix(name, prefix), "/") {
		bucket, ok = strings.CutPrefix(name, prefix)
	}
	if !ok {
		return "", "", &refusal{status: http.StatusNotFound, why: "want " + prefix + "BUCKET/KEY"}
	}
	if len(key) > maxKey {
		return "", "", &refusal{status: http.StatusRequestURITooLong, why: fmt.Sprintf("the key has %d bytes, at most %d are taken", len(key), maxKey)}
	}
	if ready, reason := s.Ready(); !ready {
		return "", "", unavailable(reason)
	}
	token, ok := identity.FromHeader(authorization)
	if !ok {
		return "", "", unauthorized("want a header Authorization: Bearer TOKEN")
	}
	who, err := s.reviewer.Review(ctx, token)
	if errors.Is(err, identity.ErrTooMany) {
		return "", "", &refusal{status: http.StatusTooManyRequests, why: err.Error(), name: "Retry-After", value: "1"}
	}
	if errors.Is(err, identity.ErrUnknown) {
		return "", "", unauthorized(identity.ErrUnknown.Error() + ": wrong audience, expired, or its pod is gone")
	}
	if err != nil {
		s.cfg.Log.Warn("a token was not reviewed", "error", err)
		return "", "", unavailable("the token can't be reviewed now")
	}
	if !s.cfg.Buckets().Allows(bucket, who.Namespace) {
		// The response is the same if the bucket does not exist, so that clients without access can't find out.
		return "", "", &refusal{status: http.StatusForbidden, why: fmt.Sprintf("bucket %q is not open to namespace %q", bucket, who.Namespace)}
	}
	return bucket, key, nil
}

// refusal is an error response.
type refusal struct {
	status      int
	why         string
	name, value string // an additional header field; empty: none
}

func unavailable(why string) *refusal {
	return &refusal{status: http.StatusServiceUnavailable, why: why, name: "Retry-After", value: "1"}
}

func unauthorized(why string) *refusal {
	return &refusal{status: http.StatusUnauthorized, why: why, name: "WWW-Authenticate", value: "Bearer"}
}

// answer sends the error response.
func (no *refusal) answer(r *request) {
	if no.name != "" {
		r.answer.Header().Set(no.name, no.value)
	}
	r.refuse(no.status, no.why)
}

// refuse sends an error response with a line of text.
func (r *request) refuse(status int, why string) { http.Error(r.answer, why, status) }

// statusRecorder records the status for the metrics.
type statusRecorder struct {
	http.ResponseWriter
	status int
}

// WriteHeader records the status.
func (a *statusRecorder) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the connection.
func (a *statusRecorder) Unwrap() http.ResponseWriter { return a.ResponseWriter }
