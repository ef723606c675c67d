// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hub mirrors a Hugging Face hub for the clients that people have: huggingface_hub, transformers, datasets.
//
// The interface is that of huggingface_hub 2.4 (its modules hf_api and file_download), which the hub does not specify elsewhere.
package hub

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kubeflow/datacache/internal/identity"
	"github.com/kubeflow/datacache/objectcache/mirror/content"
	"github.com/kubeflow/datacache/objectcache/mirror/rights"
	"github.com/kubeflow/datacache/objectcache/mirror/upstream"
)

const (
	// Prefix is the path below which the mirror serves the hub's paths: clients have HF_ENDPOINT=http://HOST:PORT/hub.
	Prefix = "/hub"
	// Kind is the value of the label "kind" of metrics.
	Kind = "hub"
	// branchAge is how long what a branch or tag points to is served without asking the hub.
	branchAge = 30 * time.Second
	// maxBody is the maximum length of the body of a request for a document.
	maxBody = 1 << 20
)

// Config configures a mirror of a hub.
type Config struct {
	Upstream     string        // the hub's URL, without a slash at the end
	Bucket       string        // of the object cache, with Mirror: true
	Tokens       string        // folder of files, each with the hub's token for the namespace that is the file's name; empty: none
	StaleIfError time.Duration // how long documents and rights are used after they aged while the hub fails
}

// Options are what a Hub works with. All fields are required.
type Options struct {
	Config   func() Config // the current one; without an Upstream the hub is not mirrored
	Cache    *content.Cache
	Metrics  *content.Metrics
	Upstream *upstream.Client
	Review   func(r *http.Request, token string) (identity.Identity, error)
	Log      *slog.Logger
}

// Hub is the mirror. Create it with New; it may be shared.
type Hub struct {
	o      Options
	rights *rights.Rights
}

// New returns a Hub.
func New(o Options) *Hub {
	return &Hub{o: o, rights: rights.New(func() { o.Metrics.Stale(Kind) })}
}

// call is a request being answered.
type call struct {
	*http.Request
	hub    *Hub
	cfg    Config
	out    http.ResponseWriter
	target target
	access access
	body   string          // of a request for a document
	from   content.Request // for other object caches
}

// Serve answers a request below Prefix. fromPeer says that it came to the object caches' own port.
func (h *Hub) Serve(w http.ResponseWriter, r *http.Request, fromPeer bool) {
	c := &call{Request: r, hub: h, cfg: h.o.Config(), out: w}
	if c.cfg.Upstream == "" {
		http.Error(w, "no hub is mirrored here", http.StatusNotFound)
		return
	}
	var ok bool
	if c.target, ok = parse(strings.TrimPrefix(r.URL.EscapedPath(), Prefix)); !ok {
		http.Error(w, "the path has empty segments, dots or encoded separators", http.StatusBadRequest)
		return
	}
	c.from = content.Request{Method: r.Method, Target: Prefix + c.target.path, Authorization: r.Header.Get("Authorization"), Header: http.Header{}}
	if r.Method == http.MethodHead {
		c.from.Method = http.MethodGet // documents are sent between object caches in bodies
	}
	if r.URL.RawQuery != "" {
		c.from.Target += "?" + r.URL.RawQuery
	}
	if fromPeer {
		c.from.FromPeer(w, r.Header)
	}
	var err error
	if err = c.authenticate(); err == nil {
		err = c.answer()
	}
	if err != nil {
		c.fail(err)
	}
}

// answer answers the request. After an error other than content.ErrCut, nothing was sent.
func (c *call) answer() error {
	t := c.target
	if !c.access.isOwn() {
		if t.path == "/api/whoami-v2" {
			return c.whoami()
		}
		isRead := c.Method == http.MethodGet || c.Method == http.MethodHead
		if t.kind == "" && !isRead || t.kind != "" && !t.isReadable(c.Method) {
			c.hub.o.Metrics.Refuse(Kind)
			http.Error(c.out, "a cluster's token reads repositories only: use a token of the hub for this", http.StatusForbidden)
			return nil
		}
		if t.kind == "" {
			c.access.credential = "" // the namespace's token is for repositories
		}
	}
	isFile := t.part == "resolve" && (c.Method == http.MethodGet || c.Method == http.MethodHead)
	if !isFile && !t.isDocument(c.Method) {
		return c.proxy()
	}
	err := c.check()
	var refused *upstream.Refused
	if errors.As(err, &refused) && !upstream.IsDown(err) {
		c.hub.o.Metrics.Refuse(Kind)
		return c.proxy() // for the hub's own answer to this request
	}
	if err != nil {
		return err
	}
	if isFile {
		return c.file()
	}
	return c.document()
}

// whoami answers the question for a token's owner, which clients ask at login, for a cluster's token.
func (c *call) whoami() error {
	c.out.Header().Set("Content-Type", "application/json")
	_, err := io.WriteString(c.out, `{"type": "user", "name": `+strconv.Quote(c.access.namespace)+`, "fullname": "", "orgs": [], `+
		`"auth": {"type": "access_token", "accessToken": {"displayName": "cluster", "role": "read"}}}`)
	if err != nil {
		return content.ErrCut
	}
	return nil
}

// document answers with a document of the repository.
func (c *call) document() error {
	h := c.hub
	query, ok := c.target.query(c.URL.RawQuery)
	if !ok { // the answer may depend on it in a way that is not known here
		return c.proxy()
	}
	key := "document/" + c.Method + c.target.path + "?" + query
	if c.Method == http.MethodPost {
		put, err := h.o.Cache.Take(c.Context(), 3*maxBody)
		if err != nil {
			return err
		}
		defer put()
		text, err := io.ReadAll(http.MaxBytesReader(c.out, c.Body, maxBody))
		if err != nil {
			http.Error(c.out, "the body is too long or broke off", http.StatusBadRequest)
			return nil // answered
		}
		c.body = string(text)
		c.from.Body, c.from.Header = c.body, http.Header{"Content-Type": c.Header["Content-Type"]}
		sum := sha256.Sum256([]byte(c.Header.Get("Content-Type") + "\n" + c.body))
		key += "#" + hex.EncodeToString(sum[:])
	}
	d, err := h.o.Cache.Document(c.Context(), c.query(key, func(ctx context.Context) (upstream.Document, error) {
		r, err := c.request(ctx, c.Method, c.target.path+optional(query), strings.NewReader(c.body))
		if err != nil {
			return upstream.Document{}, err
		}
		maps.Copy(r.Header, c.from.Header)
		return h.o.Upstream.Document(r)
	}))
	if errors.Is(err, content.ErrNotKept) {
		return c.proxy()
	}
	if err != nil {
		return err
	}
	return c.send(d)
}

// query returns the question for a document of the target.
func (c *call) query(key string, fetch func(ctx context.Context) (upstream.Document, error)) content.Query {
	q := content.Query{
		Kind: Kind, Bucket: c.cfg.Bucket, Key: key, MaxAge: branchAge, StaleIfError: c.cfg.StaleIfError, Request: &c.from, Fetch: fetch,
	}
	if c.target.isFixed() {
		q.MaxAge = content.Forever
	}
	return q
}

// optional returns a query with a question mark before it, or "" for an empty one.
func optional(query string) string {
	if query == "" {
		return ""
	}
	return "?" + query
}

// send sends a document to a client, and closes it.
func (c *call) send(d upstream.Document) error {
	defer func() { _ = d.Close() }() // opened for reading: closing can't lose data
	header := c.out.Header()
	c.copyHeader(d.Header, false)
	if d.Length >= 0 && !strings.HasPrefix(d.Header.Get("Content-Type"), "application/json") {
		header.Set("Content-Length", strconv.FormatInt(d.Length, 10))
	}
	c.out.WriteHeader(d.Status)
	if c.Method == http.MethodHead || d.Body == nil {
		return nil
	}
	if err := c.copyBody(d.Header, d.Body); err != nil {
		return content.ErrCut
	}
	return nil
}

// refused passes on a refusal of the hub.
func (c *call) refused(r *upstream.Refused) {
	d := r.Answer
	d.Body, d.Length = io.NopCloser(bytes.NewReader(r.Message)), int64(len(r.Message))
	if err := c.send(d); err != nil {
		panic(http.ErrAbortHandler) // closes the connection, so that the client notices that the response is incomplete
	}
}

// base is the URL of the mirror as the client sees it, in place of the hub's.
func (c *call) base() string {
	scheme := "http"
	if c.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + c.Host + Prefix
}

// request returns a request for the hub with the client's rights there. target has the path and the query.
func (c *call) request(ctx context.Context, method, target string, body io.Reader) (*http.Request, error) {
	return upstream.NewRequest(ctx, method, c.cfg.Upstream+target, c.access.credential, body)
}
