// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubeflow/datacache/internal/identity"
)

// Traffic counts what was read and written of each bucket, and the requests to other members. Metrics and the page show the same counts.
// The zero value is ready to use; it is safe for concurrent use.
type Traffic struct {
	byBucket sync.Map // from the name of a bucket to *counts
	forwards outcomes
	parts    outcomes // requests for parts of large objects
}

// counts are the counts of a bucket. Only authorized requests are counted, so clients can't create buckets here.
type counts struct {
	hits, misses, sent, received atomic.Int64 // the last two in bytes
}

// Outcomes of requests to other nodes, and of token reviews.
const (
	labelOutcome    = "outcome"
	outcomeAnswered = "answered"
	outcomeFailed   = "failed"
	outcomeSpared   = "spared" // not sent, since another just failed
	ownerKnown      = "known"
	ownerUnknown    = "unknown"
)

// outcomes count requests to other members.
type outcomes struct{ answered, failed, spared atomic.Int64 }

// Read counts a read of something in a bucket, which was on this node or was not.
func (t *Traffic) Read(bucket string, found bool) {
	if found {
		t.bucket(bucket).hits.Add(1)
	} else {
		t.bucket(bucket).misses.Add(1)
	}
}

// Sent counts bytes of a bucket that were sent from this node.
func (t *Traffic) Sent(bucket string, n int64) { t.bucket(bucket).sent.Add(n) }

// Received counts bytes that this node received for a bucket.
func (t *Traffic) Received(bucket string, n int64) { t.bucket(bucket).received.Add(n) }

func (t *Traffic) bucket(name string) *counts {
	if c, ok := t.byBucket.Load(name); ok {
		return c.(*counts)
	}
	c, _ := t.byBucket.LoadOrStore(name, &counts{})
	return c.(*counts)
}

// buckets are the buckets that were counted.
func (t *Traffic) buckets() iter.Seq2[string, *counts] {
	return func(yield func(string, *counts) bool) {
		t.byBucket.Range(func(name, c any) bool { return yield(name.(string), c.(*counts)) }) //nolint:forcetypeassert // bucket stores no other types
	}
}

// total is the sum over all buckets.
func (t *Traffic) total() *counts {
	sum := &counts{}
	for _, c := range t.buckets() {
		sum.hits.Add(c.hits.Load())
		sum.misses.Add(c.misses.Load())
		sum.sent.Add(c.sent.Load())
		sum.received.Add(c.received.Load())
	}
	return sum
}

// reads is the number of reads, and the part of them that found their object; 0 without any.
func (c *counts) reads() (n int64, found float64) {
	hits := c.hits.Load()
	n = hits + c.misses.Load()
	return n, float64(hits) / float64(max(n, 1))
}

// timed is a Reviewer that measures the duration of another's reviews.
type timed struct {
	ask     identity.Reviewer
	seconds *prometheus.HistogramVec
}

// Review calls the other Reviewer and observes how long it took.
func (t timed) Review(ctx context.Context, token string) (identity.Identity, error) {
	began := time.Now()
	who, err := t.ask.Review(ctx, token)
	outcome := ownerKnown
	if err != nil {
		outcome = outcomeFailed
	}
	if errors.Is(err, identity.ErrUnknown) {
		outcome = ownerUnknown
	}
	t.seconds.WithLabelValues(outcome).Observe(time.Since(began).Seconds())
	return who, err
}
