// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

const (
	// indexWait is how long a request waits for the nodes to evaluate its filter.
	indexWait = 30 * time.Second
	// mostFilters is the number of filters that a head remembers. The nodes' indexes are bounded by their memory.
	mostFilters = 256
	// mostIndexing is the number of filters that nodes may be evaluating; see outboxSize.
	mostIndexing = 64
)

// filters are the filters that clients have used with a plan; the zero value is that without a plan. The cluster's mu protects them.
type filters struct {
	held    map[string]*filter // by canonical text
	changed chan struct{}      // closed, and replaced, when a node has answered or a session has ended
}

func newFilters() filters { return filters{held: map[string]*filter{}, changed: make(chan struct{})} }

// wake makes all waiting requests look again.
func (f *filters) wake() {
	if f.changed != nil {
		close(f.changed)
	}
	f.changed = make(chan struct{})
}

// filter is a filter, and what the nodes have of it.
type filter struct {
	id, text string
	nodes    []nodeFilter
	waiting  int       // requests that wait for it
	touched  time.Time // of the last request
	failure  string    // why it can't be used with this plan any more
}

// nodeFilter is what one node has said about a filter. Over a new session the node is asked again: it may have restarted.
type nodeFilter struct {
	asked   *session // whom the index was requested from
	done    *session // who has it
	rows    int64
	hash    string // "" before the first answer; the rows must be the same at each
	refusal error  // of the last request
}

// filtered waits until every node has the index of a filter over the rows of v, and returns v with the filtered rows. text is the
// filter in canonical form.
func (c *cluster) filtered(ctx context.Context, v view, text string) (view, string, error) {
	f, err := c.openFilter(v.plan, text)
	if err != nil {
		return view{}, "", err
	}
	defer c.closeFilter(f)
	deadline := time.NewTimer(indexWait)
	defer deadline.Stop()
	for {
		v, err := c.view() // it may have changed during the wait
		if err != nil {
			return view{}, "", err
		}
		counts, changed, err := c.askNodes(v.plan, f)
		if err != nil {
			return view{}, "", err
		}
		if counts != nil {
			v.bounds = assign.BoundsOf(counts)
			v.filtered = v.bounds[len(v.bounds)-1][1]
			v.rows = v.filtered
			return v, f.id, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return view{}, "", status.FromContextError(ctx.Err()).Err()
		case <-deadline.C:
			return view{}, "", c.indexing(f)
		}
	}
}

// openFilter returns the filter, for use by one request.
func (c *cluster) openFilter(plan *tablePlan, text string) (*filter, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.filters.held[text]
	if f == nil {
		if len(c.filters.held) >= mostFilters && !c.forgetFilterLocked() {
			return nil, status.Errorf(codes.ResourceExhausted, "filter: requests wait for %d other filters: ask again later", mostFilters)
		}
		id, err := fingerprintOf([]string{plan.fingerprint, text})
		if err != nil {
			return nil, err
		}
		f = &filter{id: id, text: text, nodes: make([]nodeFilter, len(c.members))}
		c.filters.held[text] = f
	}
	if f.waiting == 0 { // otherwise another request has just been asking
		for i := range f.nodes {
			f.nodes[i].refusal = nil
		}
	}
	f.waiting++
	f.touched = time.Now()
	return f, nil
}

func (c *cluster) closeFilter(f *filter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.waiting--
}

// forgetFilterLocked forgets the filter that was not requested for the longest time, if no request waits for it.
func (c *cluster) forgetFilterLocked() bool {
	var oldest *filter
	for _, f := range c.filters.held {
		if f.waiting == 0 && (oldest == nil || f.touched.Before(oldest.touched)) {
			oldest = f
		}
	}
	if oldest == nil {
		return false
	}
	delete(c.filters.held, oldest.text)
	return true
}

// askNodes requests the index of a filter from the nodes that have none. It returns the filtered rows of each node once all have it,
// and before that a channel that is closed when this may have changed.
func (c *cluster) askNodes(plan *tablePlan, f *filter) (counts []int64, changed <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.data.plan != plan || c.filters.held[f.text] != f {
		return nil, nil, status.Error(codes.Unavailable, "filter: the cache has changed its plan: ask again")
	}
	if f.failure != "" {
		return nil, nil, status.Error(codes.FailedPrecondition, f.failure)
	}
	counts = make([]int64, len(f.nodes))
	waits := false
	for i := range f.nodes {
		n, s := &f.nodes[i], c.members[i].session
		counts[i] = n.rows
		if n.refusal != nil {
			return nil, nil, n.refusal
		}
		if n.done == s && s != nil {
			continue
		}
		waits = true
		if n.asked == s || s == nil {
			continue
		}
		if c.indexingLocked(i) >= mostIndexing {
			return nil, nil, status.Errorf(codes.ResourceExhausted, "filter: data node %d is evaluating %d other filters: ask again later", i, mostIndexing)
		}
		n.asked = s
		s.tell(peer.ToNode{Index: &peer.Index{Plan: plan.fingerprint, ID: f.id, Filter: f.text}})
	}
	if waits {
		return nil, c.filters.changed, nil
	}
	return counts, nil, nil
}

// indexingLocked is how many filters a node was asked for over its session and has not answered for.
func (c *cluster) indexingLocked(node int) (count int) {
	s := c.members[node].session
	for _, f := range c.filters.held {
		if n := &f.nodes[node]; n.asked == s && n.done != s {
			count++
		}
	}
	return count
}

// indexing describes how far the nodes are with a filter.
func (c *cluster) indexing(f *filter) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	done := 0
	for i := range f.nodes {
		if s := c.members[i].session; s != nil && f.nodes[i].done == s {
			done++
		}
	}
	return status.Errorf(codes.Unavailable, "indexing filter (%d/%d nodes)", done, len(f.nodes))
}

// indexedLocked records a node's answer about a filter.
func (c *cluster) indexedLocked(s *session, m peer.Indexed) error {
	if !c.data.loads(m.Plan) {
		return nil
	}
	if rows := c.data.nodes[s.index].rows; m.Rows < 0 || m.Rows > rows {
		return status.Errorf(codes.InvalidArgument, "data node %d says that a filter selects %d of its %d rows", s.index, m.Rows, rows)
	}
	defer c.filters.wake()
	for _, f := range c.filters.held {
		n := &f.nodes[s.index]
		for _, dropped := range m.Dropped {
			if f.id == dropped {
				n.asked, n.done = nil, nil
			}
		}
		if f.id == m.ID {
			c.answeredLocked(f, s, m)
		}
	}
	return nil
}

func (c *cluster) answeredLocked(f *filter, s *session, m peer.Indexed) {
	n, address := &f.nodes[s.index], c.members[s.index].address
	if m.Refusal != "" {
		code := codes.Internal
		if m.NoRoom {
			code = codes.ResourceExhausted
		}
		n.asked, n.refusal = nil, status.Errorf(code, "filter: data node %d (%s): %s", s.index, address, m.Refusal)
		return
	}
	if n.hash != "" && (n.hash != m.Hash || n.rows != m.Rows) {
		f.failure = fmt.Sprintf("filter: data node %d (%s) now selects %d other rows than the %d that it selected before: start a new cache", s.index, address, m.Rows, n.rows)
		return
	}
	n.done, n.rows, n.hash, n.refusal = s, m.Rows, m.Hash, nil
}
