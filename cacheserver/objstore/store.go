// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package objstore reads bytes by URI: ranges joined, retried, counted; one file a scheme.
package objstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubeflow/datacache/cacheserver/objstore/blockcache"
)

// Store opens objects of every scheme and bucket. Its methods may be called at
// the same time. Make one with New; there is nothing to close, but Idle drops
// the kept connections.
type Store struct {
	cfg    Config
	client *http.Client
	caErr  error         // why CAFile could not be used
	slots  chan struct{} // one a request in flight
	stats  *counters
	blocks *blockcache.Cache // nil: no object cache

	// The clock of retries, replaced by tests.
	now    func() time.Time
	sleep  func(ctx context.Context, d time.Duration) error
	random func() float64

	mu      sync.Mutex
	s3      *s3Client
	buckets map[string]bucket // by scheme and bucket
}

// bucket asks one bucket of a remote store for bytes. get makes one attempt and
// starts the answer; the caller closes its body. A tag, if not empty, is the
// entity tag the object must still have.
type bucket interface {
	get(ctx context.Context, key string, want span, tag string) (answer, error)
}

// New returns a Store over cfg. It connects to nothing: clients are made when
// the first object of a bucket is opened.
func New(cfg Config) *Store { return newStore(cfg, &counters{}) }

// With returns a Store whose Config is overlaid with Iceberg's FileIO properties,
// as Config.WithProperties has it. The two count into the same Stats.
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
	return s
}

// Open opens the object or file that uri names. Of a remote object it reads the
// last Config.TailBytes, which tells the size and has a Parquet footer ready in
// one request; with an object cache it asks the object's store for one byte, to
// learn size and version, and the object cache for the rest. ctx also governs every later read of the File. The caller closes
// the File.
func (s *Store) Open(ctx context.Context, uri string) (*File, error) {
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
	tail, err := o.open(ctx)
	if err != nil {
		return nil, err
	}
	return &File{ctx: ctx, uri: uri, size: o.size, modified: o.modified, object: o, near: []segment{tail}}, nil
}

// ReadAll returns the whole object. Use it for what is small (metadata,
// manifests): an object up to Config.TailBytes is one request.
func (s *Store) ReadAll(ctx context.Context, uri string) (data []byte, err error) {
	f, err := s.Open(ctx, uri)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.ReadAll(ctx)
}

// Stats returns what the Store has done so far.
func (s *Store) Stats() Stats {
	return s.stats.load()
}

// Idle closes the connections that no request is using.
func (s *Store) Idle() {
	s.client.CloseIdleConnections()
	if s.blocks != nil {
		s.blocks.CloseIdleConnections()
	}
}

// Stats counts a Store's work since New. All numbers only grow.
type Stats struct {
	Requests int64         // HTTP requests sent and reads of local files
	Bytes    int64         // bytes of objects received, those of broken answers included
	Retries  int64         // tries after the first of a range
	Failures int64         // reads that failed for good; a canceled one is none
	Waited   time.Duration // time spent in requests, summed over concurrent ones

	// What the object cache did; none of it is in the numbers above.
	CacheHits, CacheMisses int64 // reads that it served, blocks that were read from their store instead
	CacheFailures          int64 // requests to it that failed, answers of it that were damaged
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

// bucket returns the client of loc's bucket, made at its first use.
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

// connectLocked makes the client of a bucket. It reads configuration files at
// most; requests, for credentials too, are made by the first get.
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
		return newGCSBucket(ctx, s.cfg.GCS, s.client, loc.bucket)
	case schemeAzure:
		return newAzureBucket(s.cfg.Azure, s.client, loc)
	}
	return nil, fmt.Errorf("scheme %q: %w", loc.scheme, errors.ErrUnsupported)
}
