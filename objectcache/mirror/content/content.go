// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package content keeps blobs and documents of upstream servers in the object cache, each fetched once for all nodes.
//
// A blob has blocks of 8 MiB with the keys <digest>#<number>@<scope>. The node that owns <digest>#<number> requests the block from
// upstream when it is missing, once for all who wait for it; other nodes ask the owner, by repeating the client's request with the
// header Datacache-Mirror. The owner authorizes it again, so the header grants nothing. The scope is the repository that announced the
// digest, and blocks are served for it alone, until the whole blob was verified: then <digest>#ok exists, with the SHA-256 of each block,
// by which blocks are verified that are fetched or were kept before, and their scope is that of all repositories.
package content

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/kubeflow/datacache/internal/flight"
	"github.com/kubeflow/datacache/objectcache/buckets"
	"github.com/kubeflow/datacache/objectcache/budget"
	"github.com/kubeflow/datacache/objectcache/mirror/upstream"
	"github.com/kubeflow/datacache/objectcache/router"
	"github.com/kubeflow/datacache/objectcache/serve"
	"github.com/kubeflow/datacache/objectcache/store"
)

const (
	blockSize = 8 << 20
	// maxFills bounds the requests for blocks that are under way to upstream servers.
	maxFills = 16
	// fillTimeout is the time limit for one block.
	fillTimeout = 5 * time.Minute
	// hopHeader says which part of the request's answer another object cache asks for: "document", or the number of a block.
	hopHeader   = "Datacache-Mirror"
	hopDocument = "document"
	hopPoisoned = "poisoned" // in an answer: upstream's bytes do not match their digest
)

// Config configures a Cache. All fields are required.
type Config struct {
	Store   *store.Store
	Buckets func() buckets.Config // the current one
	Router  *router.Router
	Peers   *serve.Peers // asks the owners of keys
	Metrics *Metrics
	Log     *slog.Logger
}

// Cache keeps blobs and documents. Create it with New; it may be shared.
type Cache struct {
	cfg        Config
	unit       int64                 // blockSize, except in tests
	reads      flight.Group[bool]    // of blocks
	fetches    flight.Group[fetched] // of documents
	promotions singleflight.Group
	fills      chan struct{} // has a value for each fill in progress
}

// New returns a Cache.
func New(cfg Config) *Cache {
	return &Cache{cfg: cfg, unit: blockSize, fills: make(chan struct{}, maxFills)}
}

// Request is what another node needs to repeat a client's request.
type Request struct {
	Method        string
	Target        string // path and query at the mirror, encoded
	Authorization string
	Header        http.Header // further fields
	Body          string
	hop           string // the value of hopHeader that it came with; empty: from a client
	out           http.ResponseWriter
}

// FromPeer sets the part of the answer that another object cache asks for, from its request's header, and where it is answered. Only
// requests that came to the object cache's own port may have it.
func (r *Request) FromPeer(out http.ResponseWriter, header http.Header) {
	r.out, r.hop = out, header.Get(hopHeader)
}

// block returns the number of the block that another object cache asks for.
func (r *Request) block() (int64, bool) {
	n, err := strconv.ParseInt(r.hop, 10, 63)
	return n, err == nil && n >= 0
}

// isForDocument reports whether another object cache asks for a document.
func (r *Request) isForDocument() bool { return r.hop == hopDocument }

// IsHop reports whether another object cache repeats a client's request.
func (r *Request) IsHop() bool { return r.hop != "" }

// ask repeats the request at a member.
func (c *Cache) ask(ctx context.Context, to router.Member, r *Request, method, hop string) (*http.Response, error) {
	out, err := http.NewRequestWithContext(ctx, method, "http://peer"+strings.TrimSuffix(serve.PeerPath, "/")+r.Target, strings.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	maps.Copy(out.Header, r.Header)
	out.Header.Set("User-Agent", "")
	out.Header.Set(hopHeader, hop)
	if r.Authorization != "" {
		out.Header.Set("Authorization", r.Authorization)
	}
	return c.cfg.Peers.Ask(out, to)
}

// put stores an object. Without room for it or with a failing disk, it is not kept.
func (c *Cache) put(bucket, key string, data []byte) {
	w, err := c.cfg.Store.Create(bucket, key, int64(len(data)))
	if err == nil {
		defer w.Abort()
		if _, err = w.Write(data); err == nil {
			err = w.Commit()
		}
	}
	if err != nil {
		c.cfg.Log.Debug("not kept", "bucket", bucket, "key", key, "error", err)
	}
}

// get reads a whole object.
func (c *Cache) get(bucket, key string) ([]byte, error) {
	object, err := c.cfg.Store.Get(bucket, key)
	if err != nil {
		return nil, err
	}
	defer func() { _ = object.Close() }() // opened for reading: closing can't lose data
	body, err := object.Reader(0, object.Size())
	if err != nil {
		return nil, err
	}
	data := make([]byte, object.Size())
	_, err = io.ReadFull(body, data)
	return data, err
}

// The traffic of mirrors counts by kind, and by bucket with that of objects.

func (c *Cache) countRead(kind, bucket string, found bool) {
	counter := c.cfg.Metrics.misses
	if found {
		counter = c.cfg.Metrics.hits
	}
	counter.WithLabelValues(kind).Inc()
	c.cfg.Peers.Traffic().Read(bucket, found)
}

func (c *Cache) countReceived(kind, bucket string, n int64) {
	c.cfg.Metrics.originBytes.WithLabelValues(kind).Add(float64(n))
	c.cfg.Peers.Traffic().Received(bucket, n)
}

// Buffer takes a buffer from the memory of requests, and what an answer of upstream takes that is being copied.
func (c *Cache) Buffer(ctx context.Context) (*budget.Buffer, error) {
	return c.cfg.Peers.Memory().Buffer(ctx, upstream.Memory)
}

// Take takes n bytes from the memory of requests until the function is called that it returns.
func (c *Cache) Take(ctx context.Context, n int64) (put func(), err error) {
	memory := c.cfg.Peers.Memory().Large()
	return func() { memory.Put(n) }, memory.Take(ctx, n)
}

// ErrPoisoned says that upstream's bytes do not match the digest that upstream announced.
var ErrPoisoned = errors.New("the bytes do not match their digest")

// Ended reports whether a request needs no answer after an error: it was answered already, or the client has left. It panics with
// http.ErrAbortHandler after ErrCut, which closes the connection, so that the client notices that the response is incomplete.
func Ended(r *http.Request, err error) bool {
	if errors.Is(err, ErrCut) {
		panic(http.ErrAbortHandler)
	}
	return errors.Is(err, errAnswered) || r.Context().Err() != nil
}

// Fail answers a request after bytes that do not match, or without memory. It reports whether err is one of these.
func Fail(w http.ResponseWriter, err error) bool {
	switch {
	case errors.Is(err, ErrPoisoned):
		w.Header().Set(hopHeader, hopPoisoned)
		http.Error(w, "upstream's bytes do not match their digest", http.StatusBadGateway)
	case errors.Is(err, budget.ErrFull):
		w.Header().Set("Retry-After", "1")
		http.Error(w, budget.ErrFull.Error(), http.StatusServiceUnavailable)
	default:
		return false
	}
	return true
}
