// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"crypto/sha256"
	"net/http"
	"net/url"
	"sync"
	"time"
)

const (
	// redirectAge is how long the target of a redirect to another host is used without asking again. Such targets are signed URLs, which
	// are valid for longer; the hub limits how often a client asks for them.
	redirectAge = time.Minute
	// maxRedirectsKept and maxRedirect, in bytes of a URL, bound the memory for them.
	maxRedirectsKept = 1024
	maxRedirect      = 8 << 10
)

// redirects remembers the targets of redirects by request and credentials. The zero value is empty; it may be shared.
type redirects struct {
	mu      sync.Mutex
	targets map[[sha256.Size]byte]redirect
}

type redirect struct {
	to    *url.URL
	until time.Time
}

func redirectKey(r *http.Request) [sha256.Size]byte {
	return sha256.Sum256([]byte(r.Header.Get("Authorization") + "\n" + r.URL.String()))
}

// find returns the target for a request; nil if none is known.
func (d *redirects) find(r *http.Request) *url.URL {
	d.mu.Lock()
	defer d.mu.Unlock()
	known, ok := d.targets[redirectKey(r)]
	if !ok || time.Now().After(known.until) {
		return nil
	}
	return known.to
}

// remember records where a request ended, if that is another host.
func (d *redirects) remember(r *http.Request, to *url.URL) {
	if to.Host == r.URL.Host || len(to.RawQuery)+len(to.Path) > maxRedirect {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.targets == nil || len(d.targets) >= maxRedirectsKept {
		d.targets = map[[sha256.Size]byte]redirect{}
	}
	key := redirectKey(r)
	if _, known := d.targets[key]; !known || time.Now().After(d.targets[key].until) { // counted from the redirect, not from its last use
		d.targets[key] = redirect{to: to, until: time.Now().Add(redirectAge)}
	}
}

func (d *redirects) forget(r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.targets, redirectKey(r))
}
