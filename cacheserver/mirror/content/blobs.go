// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/kubeflow/datacache/cacheserver/mirror/upstream"
)

// Blob is content whose digest and size upstream announced.
type Blob struct {
	Kind   string // the kind of mirror, for metrics
	Bucket string
	Digest Digest
	Size   int64
	// Read requests a range from upstream.
	Read func(ctx context.Context, first, length int64) (io.ReadCloser, error)
}

func (b Blob) key(block int64) string { return b.Digest.String() + "#" + strconv.FormatInt(block, 10) }

// blocks returns the number of a blob's blocks; an empty blob has none.
func (c *Cache) blocks(b Blob) int64 { return (b.Size + c.block - 1) / c.block }

// length is the length of one block.
func (c *Cache) length(b Blob, block int64) int64 { return min(c.block, b.Size-block*c.block) }

// open returns a reader of one block: from this node's disk, from the block's owner, or from upstream.
func (c *Cache) open(ctx context.Context, b Blob, block int64, r *Request) (io.ReadCloser, error) {
	if body := c.openLocal(b, block); body != nil {
		return body, nil
	}
	if !r.IsHop() {
		if member, elsewhere := c.cfg.Router.Elsewhere(b.Bucket, b.key(block)); elsewhere {
			response, err := c.ask(ctx, member, r, http.MethodGet, strconv.FormatInt(block, 10))
			if err == nil {
				return c.fromOwner(response, c.length(b, block))
			}
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			c.cfg.Log.Debug("a block's owner does not answer: upstream is asked", "owner", member.Name, "error", err)
		}
	}
	data, err := c.fill(ctx, b, block)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

// fromOwner returns the body of an owner's answer.
func (c *Cache) fromOwner(response *http.Response, length int64) (io.ReadCloser, error) {
	if response.StatusCode == http.StatusOK && response.ContentLength == length {
		return response.Body, nil
	}
	defer func() { _ = response.Body.Close() }() // opened for reading: closing can't lose data
	if response.StatusCode == http.StatusOK {
		return nil, fmt.Errorf("a block's owner has %d bytes of it, want %d", response.ContentLength, length)
	}
	if response.Header.Get(hopHeader) == hopPoisoned {
		return nil, ErrPoisoned
	}
	text, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10)) // only for the message
	return nil, &upstream.Refused{Answer: upstream.Document{Status: response.StatusCode, Header: response.Header, Body: text, Fetched: time.Now()}}
}

// openLocal opens a block on this node's disk; nil if it is not there.
func (c *Cache) openLocal(b Blob, block int64) io.ReadCloser {
	object, err := c.cfg.Store.Get(b.Bucket, b.key(block))
	if err != nil {
		return nil
	}
	body, err := object.Reader(0, object.Size())
	if err != nil || object.Size() != c.length(b, block) {
		_ = object.Close() // opened for reading: closing can't lose data
		return nil
	}
	c.cfg.Metrics.hit(b.Kind)
	return struct {
		io.Reader
		io.Closer
	}{body, object}
}

// fill reads a block from upstream, once for all who wait for it, and stores it.
func (c *Cache) fill(ctx context.Context, b Blob, block int64) ([]byte, error) {
	return once(ctx, &c.flights, b.Bucket+"/"+b.key(block), fillTimeout, func(ctx context.Context) ([]byte, error) {
		if data, err := c.get(b.Bucket, b.key(block)); err == nil && int64(len(data)) == c.length(b, block) { // another fill may have ended since the lookup
			return data, nil
		}
		c.cfg.Metrics.miss(b.Kind)
		sums := c.sums(ctx, b)
		select {
		case c.fills <- struct{}{}:
			defer func() { <-c.fills }()
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		data, err := c.read(ctx, b, block)
		if err != nil {
			return nil, err
		}
		if err := c.checkBlock(b, block, data, sums); err != nil {
			c.cfg.Metrics.Poison(b.Kind)
			c.cfg.Log.Warn("upstream sent bytes that do not match their digest", "digest", b.Digest, "block", block)
			return nil, err
		}
		c.put(b.Bucket, b.key(block), data)
		return data, nil
	})
}

// attempts is how often a block is requested from upstream when its answers break off.
const attempts = 3

// read reads a block from upstream. It continues after an answer that broke off.
func (c *Cache) read(ctx context.Context, b Blob, block int64) ([]byte, error) {
	data := make([]byte, c.length(b, block))
	got := 0
	var err error
	for range attempts {
		var body io.ReadCloser
		if body, err = b.Read(ctx, block*c.block+int64(got), int64(len(data)-got)); err != nil {
			return nil, err
		}
		var n int
		n, err = io.ReadFull(body, data[got:])
		_ = body.Close() // opened for reading: closing can't lose data
		got += n
		c.cfg.Metrics.fromOrigin(b.Kind, int64(n))
		if got == len(data) {
			return data, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("upstream's answer broke off after %d of %d bytes: %w", got, len(data), err)
}

// checkBlock verifies a block by itself, if that is possible: if it is the whole blob, or if the blob was verified before.
func (c *Cache) checkBlock(b Blob, block int64, data []byte, sums []byte) error {
	if c.blocks(b) == 1 {
		h := b.Digest.newHash(b.Size)
		_, _ = h.Write(data) // writing to a hash never fails
		if !b.Digest.matches(h) {
			return ErrPoisoned
		}
		return nil
	}
	if sums == nil {
		return nil
	}
	sum := sha256.Sum256(data)
	if !bytes.Equal(sums[block*sha256.Size:(block+1)*sha256.Size], sum[:]) {
		return ErrPoisoned
	}
	return nil
}

// serveBlock answers another object cache's request for a block. HEAD only fetches it.
func (c *Cache) serveBlock(w http.ResponseWriter, r *http.Request, b Blob, block int64, from *Request) error {
	if block >= c.blocks(b) {
		http.Error(w, "the blob has no such block", http.StatusRequestedRangeNotSatisfiable)
		return nil
	}
	body, err := c.open(r.Context(), b, block, from)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // opened for reading: closing can't lose data
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(c.length(b, block), 10))
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	extendDeadline(w, c.length(b, block))
	_, _ = io.Copy(w, body) // the other object cache notices a body shorter than its Content-Length
	return nil
}

const (
	// A client may take stall for a block, plus one second per leastSpeed bytes.
	stall      = 30 * time.Second
	leastSpeed = 1 << 20
)

// extendDeadline gives the client time to receive the next n bytes.
func extendDeadline(w http.ResponseWriter, n int64) {
	deadline := time.Now().Add(stall + time.Duration(n/leastSpeed)*time.Second)
	_ = http.NewResponseController(w).SetWriteDeadline(deadline) // fails only if the connection has no deadlines
}

// ErrCut says that a response broke off after its header was sent. The handler must close the connection (http.ErrAbortHandler).
var ErrCut = errors.New("the response broke off")
