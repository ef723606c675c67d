// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package origin keeps credentials at the servers that they are for, whatever these servers' answers say.
package origin

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// ErrElsewhere is wrapped by the error of a request that was not sent, since it would have carried credentials to another server.
var ErrElsewhere = errors.New("which gets no credentials")

// Same reports whether two URLs have the same scheme, host and port.
func Same(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

func port(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}

// IsDowngrade reports whether a server that was asked by https leads to one in plain text.
func IsDowngrade(from, to *url.URL) bool { return from.Scheme == "https" && to.Scheme != "https" }

// Transport is an [http.RoundTripper] for requests with credentials. It refuses a redirect to another origin, also where another
// package's client follows it, and a request to none of Only. The zero value is usable; it may be shared if Base may.
type Transport struct {
	Base http.RoundTripper // nil: http.DefaultTransport
	Only []*url.URL        // origins that requests may go to; none: whichever the first request goes to
}

// RoundTrip sends the request unless it leads elsewhere.
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.check(r); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // a RoundTripper closes it, and nothing was read
		}
		return nil, err
	}
	if t.Base == nil {
		return http.DefaultTransport.RoundTrip(r)
	}
	return t.Base.RoundTrip(r)
}

// check returns an error that names both servers if the request must not be sent.
func (t Transport) check(r *http.Request) error {
	var from *url.URL
	switch redirect := r.Response; {
	case redirect != nil && redirect.Request != nil && !Same(redirect.Request.URL, r.URL):
		from = redirect.Request.URL
	case len(t.Only) > 0 && !slices.ContainsFunc(t.Only, func(u *url.URL) bool { return Same(u, r.URL) }):
		from = t.Only[0]
	default:
		return nil
	}
	return fmt.Errorf("%s leads to %s, %w: configure the latter address if it may have them", name(from), name(r.URL), ErrElsewhere)
}

// name names a URL's server.
func name(u *url.URL) string { return u.Scheme + "://" + u.Host }
