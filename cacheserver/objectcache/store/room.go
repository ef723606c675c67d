// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

// SetLimits puts other limits in force and removes what is over them: old objects of buckets that shrank, and everything
// of buckets that are not named. It returns when all is within the limits.
func (s *Store) SetLimits(limits Limits) {
	s.setLimits(limits)
	s.trim()
}

func (s *Store) setLimits(limits Limits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total = limits.Total
	for bucket := range limits.Quotas {
		s.index.lane(bucket)
	}
	for _, l := range s.index.lanes {
		l.quota = limits.Quotas[l.bucket]
	}
}

// trim evicts until all is within the limits.
func (s *Store) trim() {
	for {
		s.mu.Lock()
		giver := s.giverLocked(nil, 0)
		for _, l := range s.index.lanes {
			if l.used > l.quota && l.oldest != none {
				giver = l
			}
		}
		victim, ok := s.oldestLocked(giver)
		s.mu.Unlock()
		if !ok || s.evict(giver, victim) != nil { // a failure is counted, and the next Create tries again
			return
		}
	}
}

// most is a bucket's lane and the size of the largest file that fits into it.
func (s *Store) most(bucket string) (*lane, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.index.byName[bucket]
	if !ok {
		return nil, 0
	}
	return l, min(l.quota, s.total)
}

// reserve takes n bytes of room for an object being written, evicting as needed.
func (s *Store) reserve(l *lane, n int64) error {
	for {
		s.mu.Lock()
		giver := s.giverLocked(l, n)
		if giver == nil {
			l.reserved += n
			s.mu.Unlock()
			return nil
		}
		victim, ok := s.oldestLocked(giver)
		s.mu.Unlock()
		if !ok {
			return ErrNoRoom
		}
		if err := s.evict(giver, victim); err != nil {
			return err
		}
	}
}

// release gives reserved room back.
func (s *Store) release(l *lane, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.reserved -= n
}

// giverLocked is the bucket that must give before n bytes more fit into l; nil if they fit. At its quota a bucket gives
// from its own; at the total limit the bucket furthest over its share gives first.
func (s *Store) giverLocked(l *lane, n int64) *lane {
	if l != nil && l.used+l.reserved+n > l.quota {
		return l
	}
	var taken int64
	var quotas float64
	for _, each := range s.index.lanes {
		taken += each.used + each.reserved
		quotas += float64(each.quota)
	}
	if taken+n <= s.total {
		return nil
	}
	var giver *lane
	for _, each := range s.index.lanes {
		if each.oldest == none {
			continue // has nothing to give
		}
		if giver == nil || each.over(s.total, quotas) > giver.over(s.total, quotas) {
			giver = each
		}
	}
	if giver == nil {
		return l
	}
	return giver
}

// oldestLocked is the object of l that was not used for longest; false if l, which may be nil, has none.
func (s *Store) oldestLocked(l *lane) (identity, bool) {
	if l == nil || l.oldest == none {
		return identity{}, false
	}
	return s.index.at(l.oldest).id, true
}

// evict removes an object that was its lane's oldest. If it was used or replaced meanwhile it stays; the caller looks again.
func (s *Store) evict(l *lane, id identity) error {
	stripe := s.stripe(id)
	stripe.Lock()
	defer stripe.Unlock()
	s.mu.Lock()
	oldest, ok := s.oldestLocked(l)
	s.mu.Unlock()
	if !ok || oldest != id {
		return nil
	}
	if err := s.unlink(l.bucket, id); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e, _ := s.index.remove(id) // it is there: nobody else had its stripe
	l.evicted++
	l.evictedBytes += e.size
	return nil
}
