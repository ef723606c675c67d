// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/kubeflow/datacache/cacheserver/objectcache/identity"
)

// prefix is what comes before bucket and key in a request's target.
const prefix = "/v1/objects/"

// request is one request that is under way.
type request struct {
	*http.Request
	bucket, key string
	answer      *answer
	control     *http.ResponseController
}

// ServeHTTP answers a request for an object. It goes by the raw request target: keys hold "//", ".." and escapes that are
// part of them, which http.ServeMux would redirect or resolve.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := &answer{ResponseWriter: w}
	s.serve(&request{Request: r, answer: a, control: http.NewResponseController(w)})
	s.metrics.request(r.Method, a.status)
}

// serve decides who asks and whether they may before it looks for anything: what it does until then, and what it answers,
// does not depend on what there is.
func (s *Server) serve(r *request) {
	_ = r.control.SetWriteDeadline(time.Now().Add(stallTime)) // a connection that can't has none to keep
	var ok bool
	if r.bucket, r.key, ok = parseTarget(r.RequestURI); !ok {
		r.refuse(http.StatusNotFound, "want "+prefix+"BUCKET/KEY")
		return
	}
	if len(r.key) > maxKey {
		r.refuse(http.StatusRequestURITooLong, fmt.Sprintf("the key has %d bytes, at most %d are taken", len(r.key), maxKey))
		return
	}
	if ready, reason := s.Ready(); !ready {
		r.answer.Header().Set("Retry-After", "1")
		r.refuse(http.StatusServiceUnavailable, reason)
		return
	}
	if !s.authorized(r) {
		return
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

// authorized says whether the request's namespace may use the bucket; if not, it has answered.
func (s *Server) authorized(r *request) bool {
	token, ok := identity.FromHeader(r.Header.Get("Authorization"))
	if !ok {
		r.unauthorized("want a header Authorization: Bearer TOKEN")
		return false
	}
	who, err := s.reviewer.Review(r.Context(), token)
	if errors.Is(err, identity.ErrUnknown) {
		r.unauthorized(identity.ErrUnknown.Error() + ": wrong audience, expired, or its pod is gone")
		return false
	}
	if err != nil {
		s.cfg.Log.Warn("nobody could say whose a token is", "error", err)
		r.answer.Header().Set("Retry-After", "1")
		r.refuse(http.StatusServiceUnavailable, "nobody can say whose the token is")
		return false
	}
	if !s.cfg.Buckets().Allows(r.bucket, who.Namespace) {
		// The same for a bucket that is not there: who may not use one does not learn whether it is.
		r.refuse(http.StatusForbidden, fmt.Sprintf("bucket %q is not open to namespace %q", r.bucket, who.Namespace))
		return false
	}
	return true
}

func (r *request) unauthorized(why string) {
	r.answer.Header().Set("WWW-Authenticate", "Bearer")
	r.refuse(http.StatusUnauthorized, why)
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
