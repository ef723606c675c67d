// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/kubeflow/datacache/cacheserver/objectcache/identity"
)

// prefix is what comes before bucket and key in a request's target.
const prefix = "/v1/objects/"

// request is a request being answered.
type request struct {
	*http.Request
	bucket, key string
	answer      *answer
	control     *http.ResponseController
}

// ServeHTTP answers a request for an object. It works on the raw request target: keys contain "//", ".." and escapes that are
// part of them, which http.ServeMux would redirect or resolve.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.RequestURI == alivePath {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	a := &answer{ResponseWriter: w}
	s.serve(&request{Request: r, answer: a, control: http.NewResponseController(w)})
	s.metrics.request(r.Method, a.status)
}

func (s *Server) serve(r *request) {
	_ = r.control.SetWriteDeadline(time.Now().Add(s.limits.stall)) // a connection that can't has none to keep
	if r.Body != http.NoBody {
		r.Body = newIncoming(r, s.limits)
	}
	var no *refusal
	if r.bucket, r.key, no = s.admit(r.Context(), r.RequestURI, r.Header.Get("Authorization")); no != nil {
		no.answer(r)
		return
	}
	if r.Method == http.MethodPut { // before a byte of the body is asked for, or sent on
		if err := s.cfg.Store.Fits(r.bucket, r.key, r.ContentLength); err != nil {
			s.refusePut(r, err)
			return
		}
	}
	if r.Header.Get(hopHeader) == "" {
		if member, elsewhere := s.cfg.Router.Elsewhere(r.bucket, r.key); elsewhere {
			s.forward(r, member)
			return
		}
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		s.get(r)
	case http.MethodPut:
		s.put(r)
	case http.MethodDelete:
		s.delete(r)
	default:
		r.answer.Header().Set("Allow", "GET, HEAD, PUT, DELETE")
		r.refuse(http.StatusMethodNotAllowed, r.Method+" is not for objects")
	}
}

// parseTarget takes bucket and key out of a raw request target. The key is all that follows the bucket's slash.
func parseTarget(target string) (bucket, key string, ok bool) {
	rest, ok := strings.CutPrefix(target, prefix)
	if !ok {
		return "", "", false
	}
	bucket, key, _ = strings.Cut(rest, "/")
	return bucket, key, bucket != "" && key != ""
}

// admit decides who asks and whether they may before anything is looked for: what it does, and what it refuses with, does
// not depend on what there is.
func (s *Server) admit(ctx context.Context, target, authorization string) (bucket, key string, no *refusal) {
	bucket, key, ok := parseTarget(target)
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
	if errors.Is(err, identity.ErrUnknown) {
		return "", "", unauthorized(identity.ErrUnknown.Error() + ": wrong audience, expired, or its pod is gone")
	}
	if err != nil {
		s.cfg.Log.Warn("nobody could say whose a token is", "error", err)
		return "", "", unavailable("nobody can say whose the token is")
	}
	if !s.cfg.Buckets().Allows(bucket, who.Namespace) {
		// The same for a bucket that is not there: who may not use one does not learn whether it is.
		return "", "", &refusal{status: http.StatusForbidden, why: fmt.Sprintf("bucket %q is not open to namespace %q", bucket, who.Namespace)}
	}
	return bucket, key, nil
}

// refusal is an answer that says no.
type refusal struct {
	status      int
	why         string
	name, value string // of a header that goes with it; empty if none does
}

func unavailable(why string) *refusal {
	return &refusal{status: http.StatusServiceUnavailable, why: why, name: "Retry-After", value: "1"}
}

func unauthorized(why string) *refusal {
	return &refusal{status: http.StatusUnauthorized, why: why, name: "WWW-Authenticate", value: "Bearer"}
}

// answer refuses a request.
func (no *refusal) answer(r *request) {
	if no.name != "" {
		r.answer.Header().Set(no.name, no.value)
	}
	r.refuse(no.status, no.why)
}

// refuse answers with a status and a line of why.
func (r *request) refuse(status int, why string) { http.Error(r.answer, why, status) }

// answer remembers the status for the metrics.
type answer struct {
	http.ResponseWriter
	status int
}

// WriteHeader notes the status and passes it on.
func (a *answer) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController through to the connection.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
