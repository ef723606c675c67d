// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package oci mirrors registries of container images for containerd, by the OCI distribution API.
package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kubeflow/datacache/objectcache/mirror/content"
	"github.com/kubeflow/datacache/objectcache/mirror/rights"
	"github.com/kubeflow/datacache/objectcache/mirror/upstream"
	"github.com/kubeflow/datacache/objectcache/pace"
)

const (
	// Prefix is the path below which registries have their API.
	Prefix = "/v2"
	// Kind is the value of the label "kind" of metrics.
	Kind = "oci"
	// maxManifest is the length of a manifest from which clients and registries refuse it.
	maxManifest = 4 << 20
)

// Config configures mirrors of registries.
type Config struct {
	Bucket       string            // of the object cache, with Mirror: true
	Registries   map[string]string // URL without a slash at the end, by the registry's name in names of images
	StaleIfError time.Duration     // how long tags and rights are used after they aged while a registry fails
}

// Options are what a Registry works with. All fields are required.
type Options struct {
	Config   func() Config // the current one
	Cache    *content.Cache
	Metrics  *content.Metrics
	Upstream *upstream.Client
	FromPeer func(r *http.Request) bool // reports whether a request comes from another object cache's address
	Log      *slog.Logger
}

// Registry is the mirror of all configured registries. Create it with New; it may be shared.
type Registry struct {
	o          Options
	rights     *rights.Rights
	tokens     *tokens
	challenges sync.Map // registry's name: string, its last WWW-Authenticate for the scheme Basic
}

// New returns a Registry.
func New(o Options) *Registry {
	return &Registry{o: o, rights: rights.New(func() { o.Metrics.Stale(Kind) }), tokens: newTokens()}
}

// call is a request being answered.
type call struct {
	*http.Request
	registry    *Registry
	out         http.ResponseWriter
	cfg         Config
	host        string // the registry's name
	upstream    string // its URL
	target      target
	fromPeer    bool // it came to the object caches' own port
	credentials credentials
	from        content.Request // for other object caches
}

// Serve answers a request below Prefix. fromPeer says that it came to the object caches' own port.
func (g *Registry) Serve(w http.ResponseWriter, r *http.Request, fromPeer bool) {
	c := &call{
		Request: r, registry: g, out: w, cfg: g.o.Config(), host: r.URL.Query().Get("ns"), fromPeer: fromPeer,
		credentials: g.tokens.parse(r.Header.Get("Authorization"), fromPeer && g.o.FromPeer(r)),
	}
	if r.URL.Path == Prefix || r.URL.Path == Prefix+"/" {
		w.WriteHeader(http.StatusOK) // no challenge here: the registry challenges the requests for content
		return
	}
	if c.host == "" && len(c.cfg.Registries) == 1 {
		for c.host = range c.cfg.Registries {
		}
	}
	var ok bool
	if c.upstream, ok = c.cfg.Registries[c.host]; !ok {
		http.Error(w, "ns: this registry is not mirrored", http.StatusNotFound)
		return
	}
	if r.URL.Path == tokenPath && !fromPeer && (r.Method == http.MethodGet || r.Method == http.MethodPost) {
		c.serveToken()
		return
	}
	if c.target, ok = parse(r.URL.EscapedPath()); !ok || r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "only GET and HEAD of manifests and blobs are mirrored", http.StatusNotFound)
		return
	}
	if isClusterToken(c.credentials.forward) {
		g.o.Metrics.Refuse(Kind)
		http.Error(w, "a cluster's token is not for registries", http.StatusUnauthorized)
		return
	}
	c.from = c.request(c.target)
	if fromPeer {
		c.from.FromPeer(w, r.Header)
	}
	if err := c.answer(); err != nil {
		c.fail(err)
	}
}

// request returns what another node needs to ask for a target with this client's rights.
func (c *call) request(t target) content.Request {
	return content.Request{
		Method: http.MethodGet, Target: t.path() + "?ns=" + url.QueryEscape(c.host), Authorization: c.credentials.header,
		Header: http.Header{"Accept": c.Header["Accept"]},
	}
}

// query returns the question for a document that never changes, of another object cache's request or a client's.
func (c *call) query(key string, from *content.Request, fetch func(ctx context.Context) (upstream.Document, error)) content.Query {
	return content.Query{Kind: Kind, Bucket: c.cfg.Bucket, Key: key, MaxAge: content.Forever, Request: from, Fetch: fetch}
}

// scope names the repository, for rights.
func (c *call) scope() string { return c.host + "/" + c.target.name }

// upstreamRequest returns a request for the registry, with the client's credentials; errNoToken if they are not known.
func (c *call) upstreamRequest(ctx context.Context, method string, t target) (*http.Request, error) {
	if c.credentials.noToken {
		return nil, errNoToken
	}
	r, err := upstream.NewRequest(ctx, method, c.upstream+t.path(), c.credentials.forward, nil)
	if err == nil {
		r.Header["Accept"] = c.Header["Accept"]
	}
	return r, err
}

// head asks the registry for the header of the manifest or blob.
func (c *call) head(ctx context.Context) (upstream.Document, error) {
	r, err := c.upstreamRequest(ctx, http.MethodHead, c.target)
	if err != nil {
		return upstream.Document{}, err
	}
	return c.registry.o.Upstream.Head(r)
}

// answer answers the request. After an error other than content.ErrCut, nothing was sent.
func (c *call) answer() error {
	err := c.registry.rights.Check(c.Context(), c.credentials.owner, c.scope(), c.cfg.StaleIfError, func(ctx context.Context) error {
		d, err := c.head(ctx)
		if err == nil {
			_ = d.Close() // an answer to HEAD has no body
		}
		return err
	})
	if err != nil {
		return err
	}
	switch {
	case c.target.isBlob:
		return c.blob()
	case c.target.hasDigest:
		d, err := c.manifest(c.target, &c.from)
		return c.send(d, err)
	default:
		return c.tag()
	}
}

// blob answers with a blob. That the registry has it in this repository is a document of its own: a blob that came by another
// repository is not served here before the registry said so.
func (c *call) blob() error {
	d, err := c.registry.o.Cache.Document(c.Context(), c.query("blob/"+c.scope()+"@"+c.target.reference, &c.from, c.head))
	if err != nil {
		return err
	}
	_ = d.Close() // an answer to HEAD has no body
	size, err := strconv.ParseInt(d.Header.Get("Content-Length"), 10, 64)
	if err != nil || size < 0 || size > content.MaxSize {
		return notFound("the registry does not say the blob's size, or it is larger than any that is mirrored")
	}
	b := content.Blob{Kind: Kind, Bucket: c.cfg.Bucket, Digest: c.target.digest, Size: size, Scope: c.scope(), Read: func(ctx context.Context, first, length int64) (io.ReadCloser, error) {
		r, err := c.upstreamRequest(ctx, http.MethodGet, c.target)
		if err != nil {
			return nil, err
		}
		return c.registry.o.Upstream.Range(r, first, length, size)
	}}
	header := c.out.Header()
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Docker-Content-Digest", c.target.reference)
	header.Set("Etag", `"`+c.target.reference+`"`)
	return c.registry.o.Cache.Serve(c.out, c.Request, b, &c.from)
}

// notFound is a refusal after which containerd asks the registry itself.
func notFound(why string) error {
	return &upstream.Refused{Answer: upstream.Document{Status: http.StatusNotFound}, Message: []byte(why + "\n")}
}

// manifest returns the manifest with a digest, which the caller closes.
func (c *call) manifest(t target, from *content.Request) (upstream.Document, error) {
	q := c.query("manifest/"+c.scope()+"@"+t.reference, from, func(ctx context.Context) (upstream.Document, error) {
		r, err := c.upstreamRequest(ctx, http.MethodGet, t)
		if err != nil {
			return upstream.Document{}, err
		}
		d, err := c.registry.o.Upstream.Document(r)
		if err != nil {
			return upstream.Document{}, err
		}
		if d.Length > maxManifest {
			_ = d.Close() // it is not read
			return upstream.Document{}, notFound("the manifest is longer than any that is mirrored")
		}
		d.Header = http.Header{"Content-Type": d.Header["Content-Type"], "Docker-Content-Digest": {t.reference}}
		return d, nil
	})
	q.Digest = t.digest
	return c.registry.o.Cache.Document(c.Context(), q)
}

// tag answers with the manifest that a tag names. The registry is asked for the tag's digest each time. The manifest is fetched for HEAD
// too: containerd must get by GET whatever HEAD announced.
func (c *call) tag() error {
	accept := sha256.Sum256([]byte(c.Header.Get("Accept"))) // registries choose the manifest by it
	q := c.query("tag/"+c.scope()+":"+c.target.reference+"#"+hex.EncodeToString(accept[:]), &c.from, c.head)
	q.MaxAge, q.StaleIfError = 0, c.cfg.StaleIfError
	d, err := c.registry.o.Cache.Document(c.Context(), q)
	if err != nil {
		return err
	}
	_ = d.Close() // an answer to HEAD has no body
	t, ok := c.target.at(d.Header.Get("Docker-Content-Digest"))
	if !ok || !t.hasDigest {
		return notFound("the registry does not say the tag's digest")
	}
	from := c.request(t)
	d, err = c.manifest(t, &from)
	return c.send(d, err)
}

// send sends a manifest to a client.
func (c *call) send(d upstream.Document, err error) error {
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }() // opened for reading: closing can't lose data
	header := c.out.Header()
	maps.Copy(header, d.Header)
	header.Set("Etag", `"`+d.Header.Get("Docker-Content-Digest")+`"`)
	if d.Length >= 0 {
		header.Set("Content-Length", strconv.FormatInt(d.Length, 10))
	}
	c.out.WriteHeader(http.StatusOK)
	if c.Method == http.MethodGet {
		_, _ = io.Copy(pace.Default.Writer(c.out), d.Body) // the client notices a body shorter than its Content-Length
	}
	return nil
}

// fail answers a request after an error. containerd asks the registry itself after any error.
func (c *call) fail(err error) {
	if content.Ended(c.Request, err) {
		return
	}
	var refused *upstream.Refused
	isRefused := errors.As(err, &refused)
	switch {
	case isRefused && !upstream.IsDown(err):
		c.refuse(refused)
	case c.credentials.header == "" && c.challenge() != "":
		// Clients send credentials only after a challenge. The registry may have accepted them before it failed.
		c.out.Header().Set("WWW-Authenticate", c.challenge())
		http.Error(c.out, "the registry fails, and wanted credentials before", http.StatusUnauthorized)
	case content.Fail(c.out, err):
	case errors.Is(err, content.ErrNotKept):
		http.Error(c.out, err.Error(), http.StatusServiceUnavailable)
	case isRefused:
		c.refuse(refused)
	default:
		c.registry.o.Log.Warn("a request failed", "registry", c.host, "path", c.target.path(), "error", err)
		http.Error(c.out, "the registry fails: "+err.Error(), http.StatusGatewayTimeout)
	}
}

// refuse passes on the registry's refusal with its challenge.
func (c *call) refuse(r *upstream.Refused) {
	d := r.Answer
	c.registry.o.Metrics.Refuse(Kind)
	header := c.out.Header()
	for _, name := range []string{"Content-Type", "Www-Authenticate", "Retry-After"} {
		if values, ok := d.Header[name]; ok {
			header[name] = values
		}
	}
	if challenge := d.Header.Get("Www-Authenticate"); d.Status == http.StatusUnauthorized && strings.HasPrefix(challenge, "Basic ") {
		c.registry.challenges.Store(c.host, challenge)
	}
	if scope, ok := c.registry.tokens.note(c.host, d.Header["Www-Authenticate"]); ok && !c.fromPeer {
		header.Set("Www-Authenticate", c.registry.tokens.challenge(c.host, c.base(), scope))
	}
	c.out.WriteHeader(d.Status)
	if c.Method == http.MethodGet {
		_, _ = c.out.Write(r.Message) // only for people
	}
}

// base is the URL of the mirror as the client sees it.
func (c *call) base() string {
	if c.TLS != nil {
		return "https://" + c.Host
	}
	return "http://" + c.Host
}

// challenge is one that the registry would send, by the last one that it sent; empty: none is known.
func (c *call) challenge() string {
	if bearer := c.registry.tokens.challenge(c.host, c.base(), "repository:"+c.target.name+":pull"); bearer != "" {
		return bearer
	}
	value, _ := c.registry.challenges.Load(c.host)
	text, _ := value.(string)
	return text
}
