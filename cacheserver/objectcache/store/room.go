// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

// SetLimits replaces the limits and evicts what exceeds them: the least recently used objects of buckets that shrank, and all
// objects of buckets that are not named. It returns when the store is within the limits.
func (s *Store) SetLimits(limits Limits) {
	s.setLimits(limits)
	s.trim()
}

func (s *Store) setLimits(limits Limits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total = limits.Total
	for bucket := range limits.Quotas {
		s.index.bucket(bucket)
	}
	for _, l := range s.index.buckets {
		l.quota = limits.Quotas[l.name]
	}
}

// trim evicts until the store is within its limits.
func (s *Store) trim() {
	for {
		s.mu.Lock()
		victimBucket := s.evictFromLocked(nil, 0)
		for _, l := range s.index.buckets {
			if l.used > l.quota && l.oldest != none {
				victimBucket = l
			}
		}
		victim, ok := s.oldestLocked(victimBucket)
		s.mu.Unlock()
		if !ok || s.evict(victimBucket, victim) != nil { // evict has counted the failure; the next Create tries again
			return
		}
	}
}

// largest returns a bucket and the size of the largest file that fits into it; nil and 0 if there is no such bucket.
func (s *Store) largest(bucket string) (*bucketState, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.index.byName[bucket]
	if !ok {
		return nil, 0
	}
	return l, min(l.quota, s.total)
}

// reserve reserves n bytes for an object being written, evicting as needed.
func (s *Store) reserve(l *bucketState, n int64) error {
	for {
		s.mu.Lock()
		victimBucket := s.evictFromLocked(l, n)
		if victimBucket == nil {
			l.reserved += n
			s.mu.Unlock()
			return nil
		}
		victim, ok := s.oldestLocked(victimBucket)
		s.mu.Unlock()
		if !ok {
			return ErrNoRoom
		}
		if err := s.evict(victimBucket, victim); err != nil {
			return err
		}
	}
}

// release returns reserved bytes.
func (s *Store) release(l *bucketState, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.reserved -= n
}

// evictFromLocked returns the bucket to evict from before n more bytes fit into l, nil if they fit already. A bucket at its
// quota evicts its own objects; at the total limit the bucket furthest above its share does. l may be nil.
func (s *Store) evictFromLocked(l *bucketState, n int64) *bucketState {
	if l != nil && l.used+l.reserved+n > l.quota {
		return l
	}
	var taken int64
	var quotas float64
	for _, each := range s.index.buckets {
		taken += each.used + each.reserved
		quotas += float64(each.quota)
	}
	if taken+n <= s.total {
		return nil
	}
	var victimBucket *bucketState
	for _, each := range s.index.buckets {
		if each.oldest == none {
			continue // nothing to evict
		}
		if victimBucket == nil || each.overShare(s.total, quotas) > victimBucket.overShare(s.total, quotas) {
			victimBucket = each
		}
	}
	if victimBucket == nil {
		return l
	}
	return victimBucket
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
