// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"fmt"
	"time"
)

// limits are the times that a cluster waits for its nodes, its store and its catalog.
type limits struct {
	started time.Time     // when the head started
	silence time.Duration // after which a node that says nothing counts as lost
	join    time.Duration // from the start, until every node has joined once
	load    time.Duration // without progress of a first load
}

// fault returns why the cache must fail now, "" if it need not. A cache that was Ready never fails for one of these reasons, since its
// rows are in use.
func (l limits) fault(s *state, now time.Time) string {
	missing, trouble := s.members.missing(), s.trouble()
	switch d := &s.data; {
	case d.failure != "" || d.ready:
		return ""
	case d.plan == nil && d.planFailure != "" && !l.mayHold(s, now):
		return d.planFailure
	case len(missing) > 0 && now.Sub(l.started) > l.join:
		return fmt.Sprintf("%d of %d data nodes joined within %s; missing: %s. Start them with this head's address, or lower the number of nodes",
			len(s.members)-len(missing), len(s.members), l.join, fewNames(missing))
	case trouble != "" && now.Sub(d.progressed) > l.load:
		return fmt.Sprintf("no progress for %s: %s", l.load, trouble)
	}
	return ""
}

// mayHold reports whether a node may still bring a plan: a running node that holds rows joins a restarted head within the time that it
// may be silent. That is waited for three times, since the head's address may have to be resolved again.
func (l limits) mayHold(s *state, now time.Time) bool {
	return len(s.unheard()) > 0 && now.Sub(l.started) <= 3*l.silence
}
