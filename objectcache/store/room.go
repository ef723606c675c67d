// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import "cmp"

// SetLimits replaces the limits and evicts what exceeds them: the least recently used objects of buckets that shrank, and all objects
// of buckets that are no longer named. It returns when the store is within the limits.
func (s *Store) SetLimits(limits Limits) {
	s.setLimits(limits)
	_ = s.trim() // a failure is counted, and the next Create tries again
}

func (s *Store) setLimits(limits Limits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total, s.maxObjects = limits.Total, cmp.Or(limits.Objects, DefaultMaxObjects)
	for bucket := range limits.Quotas {
		s.index.bucket(bucket)
	}
	for _, b := range s.index.buckets {
		b.quota = limits.Quotas[b.name]
	}
}

// trim evicts until the store is within its limits. If it can't, it returns an error, which it has counted.
func (s *Store) trim() error {
	for {
		s.mu.Lock()
		from := s.evictFromLocked(nil, 0, 0)
		for _, b := range s.index.buckets {
			if b.used > b.quota && b.oldest != none {
				from = b
			}
		}
		victim, ok := s.oldestLocked(from)
		s.mu.Unlock()
		if !ok {
			return nil
		}
		if err := s.evict(from, victim); err != nil {
			return err
		}
	}
}

// largest returns a bucket and the size of the largest file that it can hold; nil and 0 if there is no such bucket.
func (s *Store) largest(bucket string) (*bucketState, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.index.byName[bucket]
	if !ok {
		return nil, 0
	}
	limit := min(b.quota, s.total)
	return b, limit - limit%s.block
}

// blocks rounds the size of a file up to the space that it takes on the disk.
func (s *Store) blocks(size int64) int64 { return (size + s.block - 1) / s.block * s.block }

// reserve reserves bytes and objects for a write, evicting as needed.
func (s *Store) reserve(b *bucketState, bytes, objects int64) error {
	s.measureDisk()
	for {
		s.mu.Lock()
		from := s.evictFromLocked(b, bytes, objects)
		if from == nil {
			b.reserved += bytes
			b.writing += objects
			s.mu.Unlock()
			return nil
		}
		victim, ok := s.oldestLocked(from)
		s.mu.Unlock()
		if !ok {
			return ErrNoRoom
		}
		if err := s.evict(from, victim); err != nil {
			return err
		}
	}
}

// release returns reserved bytes and objects.
func (s *Store) release(b *bucketState, bytes, objects int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.reserved -= bytes
	b.writing -= objects
}

// evictFromLocked returns the bucket to evict from before more bytes and objects fit into b, nil if they fit already. If b is at its
// quota, its own objects are evicted; if a limit on all buckets is reached, those of the bucket furthest above its share. b may be
// nil.
func (s *Store) evictFromLocked(b *bucketState, bytes, objects int64) *bucketState {
	if b != nil && b.used+b.reserved+bytes > b.quota {
		return b
	}
	held := s.index.sums()
	maxBytes, maxObjects := s.total, s.maxObjects
	if s.disk.measured {
		maxBytes, maxObjects = min(maxBytes, s.disk.bytes), min(maxObjects, s.disk.objects)
	}
	var over func(b *bucketState) float64
	switch {
	case held.bytes+bytes > maxBytes:
		over = func(b *bucketState) float64 { return b.overShare(b.used+b.reserved, maxBytes, held.quotas) }
	case held.objects+objects > maxObjects:
		over = func(b *bucketState) float64 { return b.overShare(b.objects+b.writing, maxObjects, held.quotas) }
	default:
		return nil
	}
	var from *bucketState
	for _, each := range s.index.buckets {
		if each.oldest == none {
			continue // nothing to evict
		}
		if from == nil || over(each) > over(from) {
			from = each
		}
	}
	if from == nil {
		return b
	}
	return from
}

// oldestLocked returns the least recently used object of l; false if l is nil or empty.
func (s *Store) oldestLocked(l *bucketState) (identity, bool) {
	if l == nil || l.oldest == none {
		return identity{}, false
	}
	return s.index.at(l.oldest).id, true
}

// evict removes an object if it is still the least recently used of its bucket; otherwise it does nothing, and the caller
// chooses again.
func (s *Store) evict(l *bucketState, id identity) error {
	stripe := s.stripe(id)
	stripe.Lock()
	defer stripe.Unlock()
	s.mu.Lock()
	oldest, ok := s.oldestLocked(l)
	s.mu.Unlock()
	if !ok || oldest != id {
		return nil
	}
	s.changing(id)
	if err := s.unlink(l.name, id); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e, _ := s.index.remove(id) // it is present: this goroutine holds its stripe
	l.evicted++
	l.evictedBytes += e.size
	return nil
}
