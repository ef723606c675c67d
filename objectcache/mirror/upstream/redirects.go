// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"crypto/sha256"
	"net/http"
	"net/url"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

const (
	// redirectAge is how long the target of a redirect to another host is used without asking again. Such targets are signed URLs, which
	// are valid for longer; the hub limits how often a client asks for them.
	redirectAge = time.Minute
	// maxRedirectsKept and maxRedirect, in bytes of a URL, bound the memory for them.
	maxRedirectsKept = 1024
	maxRedirect      = 8 << 10
)

// redirects remembers the targets of redirects by request and credentials. Create it with newRedirects; it may be shared.
type redirects struct {
	targets *lru.Cache[[sha256.Size]byte, redirect]
}

type redirect struct {
	to    *url.URL
	until time.Time
}

func newRedirects() redirects {
	targets, _ := lru.New[[sha256.Size]byte, redirect](maxRedirectsKept) // it only fails for a size below 1
	return redirects{targets: targets}
}

func redirectKey(r *http.Request) [sha256.Size]byte {
	return sha256.Sum256([]byte(r.Header.Get("Authorization") + "\n" + r.URL.String()))
}

// find returns the target for a request; nil if none is known.
func (d redirects) find(r *http.Request) *url.URL {
	known, ok := d.targets.Get(redirectKey(r))
	if !ok || time.Now().After(known.until) {
		return nil
	}
	return known.to
}

// remember records where a request ended, if that is another host. Its age counts from the redirect, not from its last use.
func (d redirects) remember(r *http.Request, to *url.URL) {
	if to.Host != r.URL.Host && len(to.RawQuery)+len(to.Path) <= maxRedirect && d.find(r) == nil {
		d.targets.Add(redirectKey(r), redirect{to: to, until: time.Now().Add(redirectAge)})
	}
}

func (d redirects) forget(r *http.Request) { d.targets.Remove(redirectKey(r)) }
