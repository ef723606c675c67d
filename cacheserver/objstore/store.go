// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package objstore reads and writes objects by URI in S3, GCS, Azure, Hugging Face hubs and local files: it merges ranges into requests, retries them
// and counts them.
package objstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/oauth2"

	"github.com/kubeflow/datacache/cacheserver/objstore/blockcache"
)

// Store opens objects of every scheme and bucket. It is safe for concurrent use. Make one with New; it need not be closed, but Idle
// drops idle connections.
type Store struct {
	cfg    Config
	client *http.Client
	tokens *http.Client  // for servers that issue tokens
	caErr  error         // why CAFile could not be used
	slots  chan struct{} // limits concurrent requests
	stats  *counters
	blocks *blockcache.Cache // nil: no object cache

	// The clock used for retries; tests replace it.
	now    func() time.Time
	sleep  func(ctx context.Context, d time.Duration) error
	random func() float64

	mu      sync.Mutex
	s3      *s3Client
	buckets map[string]bucket // by scheme and bucket
}

// bucket sends requests to one bucket of a remote store. get makes one attempt and returns once the response has started; the caller
// closes its body. A tag, if not empty, is the entity tag that the object must still have.
type bucket interface {
	get(ctx context.Context, key string, want span, tag string) (answer, error)
	// list returns a page of the objects whose keys begin with prefix. It makes one attempt.
	list(ctx context.Context, prefix, token string) (page, error)
}

// New returns a Store for cfg. It makes no connection: the client of a bucket is made when its first object is opened.
func New(cfg Config) *Store { return newStore(cfg, &counters{}) }

// With returns a Store whose Config has Iceberg's FileIO properties applied; see Config.WithProperties. Both Stores count into the
// same Stats.
func (s *Store) With(properties map[string]string) (*Store, error) {
	cfg, err := s.cfg.WithProperties(properties)
	if err != nil {
		return nil, err
	}
	return newStore(cfg, s.stats), nil
}

func newStore(cfg Config, stats *counters) *Store {
	s := &Store{
		stats:   stats,
		cfg:     cfg.withDefaults(),
		now:     time.Now,
		sleep:   sleep,
		random:  rand.Float64,
		buckets: map[string]bucket{},
	}
	if s.cfg.ObjectCache.URL != "" {
		s.blocks = blockcache.New(s.cfg.ObjectCache, &stats.cache, func() time.Time { return s.now() })
	}
	s.slots = make(chan struct{}, s.cfg.Concurrency)
	s.client, s.caErr = newClient(s.cfg, s.stats)
	s.tokens = newTokenClient(s.cfg)
	return s
}

// Open opens the object or file that uri names. Of a remote object it reads the last Config.TailBytes, which yields the size and a
// Parquet footer in one request; with an object cache it requests one byte from the object's store, for size and version, and the
// rest from the object cache. ctx also applies to every later read of the File. The caller closes the File.
func (s *Store) Open(ctx context.Context, uri string) (*File, error) { return s.OpenTail(ctx, uri, 0) }

// OpenTail is Open with another number of bytes at the end that are read; 0: Config.TailBytes.
func (s *Store) OpenTail(ctx context.Context, uri string, tail int64) (*File, error) {
	loc, err := parse(uri)
	if err != nil {
		return nil, err
	}
	if loc.scheme == schemeFile {
		return s.openLocal(ctx, uri, loc)
	}
	b, err := s.bucket(ctx, loc)
	if err != nil {
		return nil, s.failed(uri, 0, 0, err)
	}
	o := &object{store: s, bucket: b, uri: uri, key: loc.key}
	end, err := o.open(ctx, cmp.Or(tail, s.cfg.TailBytes))
	if err != nil {
		return nil, err
	}
	return &File{ctx: ctx, uri: uri, size: o.size, modified: o.modified, object: o, near: []segment{end}}, nil
}

// ReadAtMost returns the whole object, unless it is longer than limit bytes: then the error is an ErrTooLong. One of up to Config.TailBytes
// takes one request.
func (s *Store) ReadAtMost(ctx context.Context, uri string, limit int64) (data []byte, err error) {
	f, err := s.Open(ctx, uri)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if f.Size() > limit {
		return nil, fmt.Errorf("%s has %d bytes, at most %d are read: %w", uri, f.Size(), limit, ErrTooLong)
	}
	return f.ReadAll(ctx)
}

// Stats returns the Store's counters.
func (s *Store) Stats() Stats {
	return s.stats.load()
}

// Idle closes the connections without a request in flight.
func (s *Store) Idle() {
	s.client.CloseIdleConnections()
	if s.blocks != nil {
		s.blocks.CloseIdleConnections()
	}
}

// Stats counts a Store's work since New. All numbers are monotonic.
type Stats struct {
	Requests int64         // HTTP requests sent and reads of local files
	Bytes    int64         // bytes of objects received, including those of broken responses
	Retries  int64         // attempts after the first, of all ranges
	Failures int64         // reads that failed permanently, without canceled ones
	Waited   time.Duration // time spent in requests, summed over concurrent ones

	// Work of the object cache; it is not included in the numbers above.
	CacheHits, CacheMisses int64 // reads that it served, and blocks read from their store instead
	CacheFailures          int64 // failed requests to it and damaged responses
	CacheBytes             int64 // bytes of objects that it served
}

type counters struct {
	requests, bytes, retries, failures, waited atomic.Int64
	cache                                      blockcache.Counters
	troubles                                   troubles
}

func (c *counters) load() Stats {
	return Stats{
		Requests: c.requests.Load(),
		Bytes:    c.bytes.Load(),
		Retries:  c.retries.Load(),
		Failures: c.failures.Load(),
		Waited:   time.Duration(c.waited.Load()),

		CacheHits:     c.cache.Hits.Load(),
		CacheMisses:   c.cache.Misses.Load(),
		CacheFailures: c.cache.Failures.Load(),
		CacheBytes:    c.cache.Bytes.Load(),
	}
}

// bucket returns the client of loc's bucket, which is made at its first use.
func (s *Store) bucket(ctx context.Context, loc location) (bucket, error) {
	if s.caErr != nil {
		return nil, s.caErr
	}
	id := loc.scheme + "://" + loc.bucket + "@" + loc.host
	s.mu.Lock()
	defer s.mu.Unlock()
	if b, ok := s.buckets[id]; ok {
		return b, nil
	}
	b, err := s.connectLocked(ctx, loc)
	if err != nil {
		return nil, err
	}
	s.buckets[id] = b
	return b, nil
}

// connectLocked makes the client of a bucket. It may read configuration files; requests, including those for credentials, are first
// made by get.
func (s *Store) connectLocked(ctx context.Context, loc location) (bucket, error) {
	switch loc.scheme {
	case schemeS3:
		if s.s3 == nil {
			c, err := newS3Client(ctx, s.cfg.S3, s.client)
			if err != nil {
				return nil, err
			}
			s.s3 = c
		}
		return &s3Bucket{client: s.s3, name: loc.bucket}, nil
	case schemeGS:
		return newGCSBucket(context.WithValue(ctx, oauth2.HTTPClient, s.tokens), s.cfg.GCS, s.client, loc.bucket)
	case schemeAzure:
		return newAzureBucket(s.cfg.Azure, s.client, s.tokens, loc)
	case schemeHub:
		return newHubBucket(s.cfg.Hub, s.client, loc.bucket)
	}
	return nil, fmt.Errorf("scheme %q: %w", loc.scheme, errors.ErrUnsupported)
}
