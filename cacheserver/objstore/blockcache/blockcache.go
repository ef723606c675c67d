// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package blockcache reads remote objects through an object cache, in blocks of 8 MiB whose pages have checksums.
package blockcache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	// BlockSize is the unit in which objects are kept in the object cache.
	BlockSize = 8 << 20
	// RestTime is how long no requests are sent to the object cache after it failed.
	RestTime = 10 * time.Second
)

// Config configures access to an object cache (docs/object-cache.md). The cache stores blocks of 8 MiB, whose pages have checksums,
// under the object's URI and entity tag; objects of a store without strong entity tags bypass it. A read that misses loads the whole
// block. If the object cache fails in any way, the read goes to the object's store. Anyone who may read the bucket of the object
// cache can read the objects, regardless of the permissions in their own store.
type Config struct {
	// URL of the object cache, http://host:port or https://host:port. Empty: none.
	URL string
	// CAFile is a PEM file of the authorities of its certificates, read for each connection. Empty: the system's.
	CAFile string
	// Bucket for the blocks.
	Bucket string
	// TokenFile holds the bearer token. It is read for each request.
	TokenFile string
	// Timeout bounds a request for one block, its body included. Default 10 s: short, since the object's own store is the fallback.
	Timeout time.Duration
}

// Check returns an error if the configuration can't work.
func (c Config) Check() error {
	if c.URL == "" && c.Bucket == "" && c.TokenFile == "" && c.CAFile == "" {
		return nil
	}
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return fmt.Errorf("object cache: URL %q, want one such as http://host:port", c.URL)
	}
	if u.Scheme == "http" && c.CAFile != "" {
		return fmt.Errorf("object cache: file of authorities %q with the URL %q, want an https URL", c.CAFile, c.URL)
	}
	if c.Bucket == "" || strings.Contains(c.Bucket, "/") {
		return fmt.Errorf("object cache: bucket %q, want the name of a bucket", c.Bucket)
	}
	if c.TokenFile == "" {
		return errors.New("object cache: no token file, want one that holds a bearer token")
	}
	return nil
}

// Counters counts the work of a Cache. The zero value is ready to use; caches may share one.
type Counters struct {
	Hits     atomic.Int64 // reads that the object cache served
	Misses   atomic.Int64 // blocks read from their store instead
	Failures atomic.Int64 // failed requests and damaged responses
	Bytes    atomic.Int64 // bytes of objects that the object cache served
}

// Object is one version of a remote object.
type Object struct {
	URI  string
	Tag  string // entity tag
	Size int64
	// Fetch fills buf from offset off of the object, reading from its store.
	Fetch func(ctx context.Context, buf []byte, off int64) error
}

// Cache reads remote objects through the object cache. It fails open: what the object cache does not return is read from the object's
// own store, and after a failure the object cache gets no requests for RestTime. Make it with New; it is safe for concurrent use.
type Cache struct {
	client   *client
	counters *Counters
	now      func() time.Time
	resting  atomic.Int64 // Unix nanoseconds until which the object cache gets no requests
	fetches  singleflight.Group
}

// New returns a Cache that uses now as its clock. It makes no connection.
func New(cfg Config, counters *Counters, now func() time.Time) *Cache {
	cfg.Timeout = cmp.Or(max(cfg.Timeout, 0), 10*time.Second)
	return &Cache{client: newClient(cfg), counters: counters, now: now}
}

// CloseIdleConnections closes the connections without a request in flight.
func (c *Cache) CloseIdleConnections() { c.client.http.CloseIdleConnections() }

// Takes reports whether an object with the entity tag can be read through the object cache: its tag must be strong, so that it names
// a version. A nil Cache returns false.
func (c *Cache) Takes(tag string) bool {
	return c != nil && tag != "" && !strings.HasPrefix(tag, "W/")
}

// Read fills buf from offset off of an object.
func (c *Cache) Read(ctx context.Context, o Object, buf []byte, off int64) error {
	for len(buf) > 0 {
		block := blockAt(o, off)
		n := min(int64(len(buf)), block.end()-off)
		if err := c.part(ctx, o, block, buf[:n], off); err != nil {
			return err
		}
		buf, off = buf[n:], off+n
	}
	return nil
}

// blockAt is the block that contains an offset.
func blockAt(o Object, off int64) extent {
	first := off / BlockSize * BlockSize
	return extent{offset: first, length: min(BlockSize, o.Size-first)}
}

// blockName names a block by the object, its version and the block's number. The bytes of a version never change, so blocks are never
// invalidated.
func blockName(o Object, block extent) string {
	return fmt.Sprintf("%s#%s#%d", o.URI, strings.Trim(o.Tag, `"`), block.offset/BlockSize)
}

// part fills buf from offset off, all within one block, from the object cache; on a miss it reads the block from its store and puts
// it into the object cache. Concurrent misses of a block read it once.
func (c *Cache) part(ctx context.Context, o Object, block extent, buf []byte, off int64) error {
	if c.now().UnixNano() < c.resting.Load() {
		return o.Fetch(ctx, buf, off)
	}
	name := blockName(o, block)
	form := pagesOf(name, block.length)
	want := extent{offset: off - block.offset, length: int64(len(buf))}
	err := c.get(ctx, name, form, want, buf)
	if err == nil {
		return nil
	}
	if !errors.Is(err, errMiss) && !errors.Is(err, errPage) {
		return o.Fetch(ctx, buf, off) // the object cache would not store the block
	}
	own := false
	data, err, _ := c.fetches.Do(name, func() (any, error) {
		own = true
		return c.fetch(ctx, o, name, form, block)
	})
	if err != nil && !own {
		return o.Fetch(ctx, buf, off) // the failure may be specific to the caller that ran the fetch, such as a canceled context
	}
	if err != nil {
		return err
	}
	copy(buf, data.([]byte)[want.offset:]) //nolint:forcetypeassert // the flight returns nothing else
	return nil
}

// fetch reads a whole block from the object's store and puts it into the object cache. It asks the object cache once more first,
// since another process may have put the block there meanwhile.
func (c *Cache) fetch(ctx context.Context, o Object, name string, form pages, block extent) ([]byte, error) {
	data := make([]byte, block.length)
	if c.get(ctx, name, form, extent{length: block.length}, data) == nil {
		return data, nil
	}
	c.counters.Misses.Add(1)
	if err := o.Fetch(ctx, data, block.offset); err != nil {
		return nil, err
	}
	c.failed(ctx, c.client.put(ctx, name, form, data))
	return data, nil
}

// get fills buf with a part of a block from the object cache. Its errors are those of client.get.
func (c *Cache) get(ctx context.Context, name string, form pages, part extent, buf []byte) error {
	err := c.client.get(ctx, name, form, part, buf)
	if err == nil {
		c.counters.Hits.Add(1)
		c.counters.Bytes.Add(part.length)
		return nil
	}
	if !errors.Is(err, errMiss) {
		c.failed(ctx, err)
	}
	return err
}

// failed counts a failure of the object cache and suspends requests to it for RestTime, unless only one block is damaged or one node
// is away or full. Errors after the end of ctx are ignored.
func (c *Cache) failed(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	c.counters.Failures.Add(1)
	if !errors.Is(err, errPage) && !errors.Is(err, errAway) {
		c.resting.Store(c.now().Add(RestTime).UnixNano())
	}
}
