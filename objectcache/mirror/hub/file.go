// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/kubeflow/datacache/internal/identity"
	"github.com/kubeflow/datacache/objectcache/budget"
	"github.com/kubeflow/datacache/objectcache/mirror/content"
	"github.com/kubeflow/datacache/objectcache/mirror/rights"
	"github.com/kubeflow/datacache/objectcache/mirror/upstream"
)

// file answers GET and HEAD of a file. Its metadata is the hub's answer to HEAD. It also caches the answer that a file does not exist, since
// clients ask for many files that a repository may have.
func (c *call) file() error {
	q := c.query("file"+c.target.path, func(ctx context.Context) (upstream.Document, error) {
		r, err := c.request(ctx, http.MethodHead, c.target.path, nil)
		if err != nil {
			return upstream.Document{}, err
		}
		r.Header.Set("Accept-Encoding", "identity")
		return c.hub.o.Upstream.Document(r)
	})
	q.Keeps = func(refusal upstream.Document) bool {
		return refusal.Status == http.StatusNotFound && refusal.Header.Get("X-Error-Code") == "EntryNotFound"
	}
	d, err := c.hub.o.Cache.Document(c.Context(), q)
	if err != nil {
		return err
	}
	_ = d.Close() // an answer to HEAD has no body
	blob, ok := c.blob(d)
	if !ok { // not a file that can be identified, or another repository's by a redirect
		return c.proxy()
	}
	large := blob.Size > largest
	c.copyHeader(d.Header, large)
	c.out.Header().Del("Location") // the bytes come from here
	if large && c.Method == http.MethodHead {
		c.hub.o.Metrics.Large(Kind)
	}
	return c.hub.o.Cache.Serve(c.out, c.Request, blob, &c.from)
}

// blob returns the content that an answer to HEAD announces: the digest is in X-Linked-Etag or Etag, the SHA-256 of files in LFS and
// the Git blob's name of others.
func (c *call) blob(d upstream.Document) (content.Blob, bool) {
	etag := cmp.Or(d.Header.Get("X-Linked-Etag"), d.Header.Get("Etag"))
	etag = strings.Trim(strings.TrimPrefix(etag, "W/"), `"`)
	digest, ok := content.SHA256(etag)
	if !ok {
		digest, ok = content.GitBlob(etag)
	}
	size, err := strconv.ParseInt(cmp.Or(d.Header.Get("X-Linked-Size"), d.Header.Get("Content-Length")), 10, 64)
	at := d.Header.Get("X-Repo-Commit")
	if !ok || err != nil || size < 0 || size > content.MaxSize || !commit.MatchString(at) {
		return content.Blob{}, false
	}
	read := func(ctx context.Context, first, length int64) (io.ReadCloser, error) {
		r, err := c.request(ctx, http.MethodGet, c.target.at(at), nil)
		if err != nil {
			return nil, err
		}
		return c.hub.o.Upstream.Range(r, first, length, size)
	}
	return content.Blob{Kind: Kind, Bucket: c.cfg.Bucket, Digest: digest, Size: size, Scope: c.target.scope(), Read: read}, true
}

// fail answers a request after an error.
func (c *call) fail(err error) {
	if content.Ended(c.Request, err) {
		return
	}
	var refused *upstream.Refused
	switch {
	case errors.Is(err, rights.ErrToken):
		c.refuse(http.StatusUnauthorized, err)
	case errors.Is(err, identity.ErrTooMany):
		c.refuse(http.StatusTooManyRequests, identity.ErrTooMany)
	case errors.Is(err, rights.ErrUnreviewed):
		c.hub.o.Log.Warn("a token was not reviewed", "error", err)
		c.refuse(http.StatusServiceUnavailable, rights.ErrUnreviewed)
	case content.Fail(c.out, err):
		if errors.Is(err, budget.ErrFull) {
			c.hub.o.Metrics.Refuse(Kind)
		}
	case errors.As(err, &refused) && (!upstream.IsDown(err) || !c.isDownload()):
		c.refused(refused)
	case c.isDownload() && upstream.IsDown(err):
		// huggingface_hub retries a GET only after 408, 429 or a broken connection, so a hub that fails is reported as 429.
		wait := "2"
		if errors.As(err, &refused) && refused.Answer.Header.Get("Retry-After") != "" {
			wait = refused.Answer.Header.Get("Retry-After")
		}
		c.out.Header().Set("Retry-After", wait)
		http.Error(c.out, "the hub fails: "+err.Error(), http.StatusTooManyRequests)
	default:
		c.hub.o.Log.Warn("a request failed", "path", c.target.path, "error", err)
		http.Error(c.out, "the hub fails: "+err.Error(), http.StatusServiceUnavailable)
	}
}

// isDownload reports whether the client downloads a file.
func (c *call) isDownload() bool { return c.target.part == "resolve" && c.Method == http.MethodGet }

func (c *call) refuse(status int, err error) {
	c.hub.o.Metrics.Refuse(Kind)
	if status == http.StatusUnauthorized {
		c.out.Header().Set("WWW-Authenticate", "Bearer")
	} else {
		c.out.Header().Set("Retry-After", "1")
	}
	http.Error(c.out, err.Error(), status)
}
