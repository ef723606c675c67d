// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"sync"
	"sync/atomic"
)

// counts are the counters of a bucket, or of all, that the page shows.
type counts struct {
	hits, misses, sent, received atomic.Int64 // the last two in bytes
}

// traffic counts the authorized requests that were answered here. The zero value is ready to use; it is safe for concurrent use.
type traffic struct {
	total    counts
	forwards atomic.Int64
	failures atomic.Int64 // forwards that failed or were spared
	byBucket sync.Map     // from the name of a bucket to *counts
}

func (t *traffic) bucket(name string) *counts {
	if c, ok := t.byBucket.Load(name); ok {
		return c.(*counts)
	}
	c, _ := t.byBucket.LoadOrStore(name, &counts{})
	return c.(*counts)
}

// ratio is the part of reads that found their object; 0 without any.
func (c *counts) ratio() float64 {
	hits, misses := c.hits.Load(), c.misses.Load()
	return float64(hits) / float64(max(hits+misses, 1))
}
