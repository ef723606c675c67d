// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"net/http"
	"regexp"
	"strings"
	"sync"
)

// Requests counts a client's requests to the API server by verb and resource, without watches and leases. The zero value is ready; it is safe for
// concurrent use.
type Requests struct {
	mu     sync.Mutex
	counts map[string]int
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Count wraps a transport; pass it to rest.Config.Wrap.
func (q *Requests) Count(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Query().Get("watch") == "" && !strings.Contains(r.URL.Path, "/leases") {
			q.add(r.Method + " " + resourceOf(r.URL.Path))
		}
		return next.RoundTrip(r)
	})
}

func (q *Requests) add(what string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.counts == nil {
		q.counts = map[string]int{}
	}
	q.counts[what]++
}

// Take returns the counts, by words such as "GET pods", and resets them.
func (q *Requests) Take() map[string]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	counts := q.counts
	q.counts = nil
	return counts
}

var ofResource = regexp.MustCompile(`^/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/[^/]+)?/([a-z]+)(?:/[^/]+)?(/[a-z]+)?$`)

// resourceOf returns the resource, with its subresource, of a path; the path itself if it has none.
func resourceOf(path string) string {
	if m := ofResource.FindStringSubmatch(path); m != nil {
		return m[1] + m[2]
	}
	return path
}
