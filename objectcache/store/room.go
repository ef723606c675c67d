// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

// SetLimits replaces the limits and evicts what exceeds them: the least recently used objects of buckets that shrank, and all objects
// of buckets that are no longer named. It returns when the store is within the limits.
func (s *Store) SetLimits(limits Limits) {
	s.mu.Lock()
	s.index.setLimits(limits)
	s.mu.Unlock()
	_ = s.trim() // a failure is counted, and the next Create tries again
}

// trim evicts until the store is within its limits. If it can't, it returns an error, which it has counted.
func (s *Store) trim() error {
	for {
		s.mu.Lock()
		from := s.index.evictFrom(nil, 0, 0)
		for _, b := range s.index.buckets {
			if b.used > b.quota && b.oldest != none {
				from = b
			}
		}
		victim, ok := s.index.oldest(from)
		s.mu.Unlock()
		if !ok {
			return nil
		}
		if err := s.evict(from, victim); err != nil {
			return err
		}
	}
}

// reserve reserves bytes and objects for a write, evicting as needed.
func (s *Store) reserve(b *bucketState, bytes, objects int64) error {
	s.measureDisk()
	for {
		s.mu.Lock()
		from := s.index.evictFrom(b, bytes, objects)
		if from == nil {
			b.reserved += bytes
			b.writing += objects
			s.mu.Unlock()
			return nil
		}
		victim, ok := s.index.oldest(from)
		s.mu.Unlock()
		if !ok {
			return ErrNoRoom
		}
		if err := s.evict(from, victim); err != nil {
			return err
		}
	}
}

// evict removes an object if it is still the least recently used of its bucket; otherwise it does nothing, and the caller
// chooses again.
func (s *Store) evict(l *bucketState, id identity) error {
	stripe := s.stripes.of(id)
	stripe.Lock()
	defer stripe.Unlock()
	s.mu.Lock()
	oldest, ok := s.index.oldest(l)
	s.mu.Unlock()
	if !ok || oldest != id {
		return nil
	}
	s.log.changing(id)
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
