// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"context"
	"errors"
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
	// mostLarge is the number of large filters that a node may be evaluating, and mostOfClient that of the clients at one address. A filter
	// is large if it takes more comparisons than smallComparisons, about a second of a core.
	mostLarge, mostOfClient = 64, 16
	smallComparisons        = 1 << 30
	// leftPatience is how long nodes go on evaluating a filter whose last client has cancelled its request, and lapsedPatience how long if the
	// request has taken too long, since the client may ask again.
	leftPatience, lapsedPatience = 2 * time.Second, indexWait
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
	id       string
	nodes    []nodeFilter
	by       asked     // the first request
	waiting  int       // requests that wait for it
	touched  time.Time // of the last request
	needless time.Time // from when on nobody is expected to wait for it, if none does
	failure  string    // why it can't be used with this plan any more
}

// asked is a request for a filter.
type asked struct {
	text        string // canonical
	comparisons int64  // that evaluating it takes on a data node
	job         string // that of the request, or else client
	client      string // host of the client's address
}

// nodeFilter is what one node has said about a filter. Over a new session the node is asked again: it may have restarted.
type nodeFilter struct {
	asked   *session // whom the index was requested from
	done    *session // who has it
	rows    int64
	hash    string // "" before the first answer; the rows must be the same at each
	refusal error  // of the last request
}

// filtered waits until every node has the index of a filter over the rows of v, and returns v with the filtered rows and the index's id.
func (c *cluster) filtered(ctx context.Context, v view, by asked) (view, string, error) {
	f, err := c.openFilter(v.plan, by)
	if err != nil {
		return view{}, "", err
	}
	defer func() { c.closeFilter(f, ctx.Err()) }()
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
func (c *cluster) openFilter(plan *tablePlan, by asked) (*filter, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.filters.held[by.text]
	if f == nil {
		if len(c.filters.held) >= mostFilters && !c.forgetFilterLocked() {
			return nil, status.Errorf(codes.ResourceExhausted, "filter: requests wait for %d other filters: ask again later", mostFilters)
		}
		id, err := fingerprintOf([]string{plan.fingerprint, by.text})
		if err != nil {
			return nil, err
		}
		f = &filter{id: id, nodes: make([]nodeFilter, len(c.members))}
		c.filters.held[by.text] = f
	}
	if f.waiting == 0 { // otherwise another request has just been asking
		for i := range f.nodes {
			f.nodes[i].refusal = nil
		}
		f.by = by
	}
	f.waiting++
	f.touched = time.Now()
	return f, nil
}

// closeFilter ends the use of a filter by one request; canceled is the error of its context.
func (c *cluster) closeFilter(f *filter, canceled error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	patience := lapsedPatience
	if errors.Is(canceled, context.Canceled) {
		patience = leftPatience
	}
	f.waiting--
	f.needless = time.Now().Add(patience)
}

// cancelFiltersLocked tells nodes to stop evaluating filters that nobody waits for.
func (c *cluster) cancelFiltersLocked(now time.Time) {
	for _, f := range c.filters.held {
		if f.waiting > 0 || now.Before(f.needless) {
			continue
		}
		for i := range f.nodes {
			if s := c.members[i].session; f.nodes[i].indexes(s) {
				f.nodes[i].asked = nil
				s.tell(peer.ToNode{Unindex: &peer.Unindex{Plan: c.data.plan.fingerprint, ID: f.id}})
			}
		}
	}
}

// indexes reports whether the node was asked for the index over a session, and has not answered.
func (n *nodeFilter) indexes(s *session) bool { return s != nil && n.asked == s && n.done != s }

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
	delete(c.filters.held, oldest.by.text)
	return true
}

// askNodes requests the index of a filter from the nodes that have none. It returns the filtered rows of each node once all have it,
// and before that a channel that is closed when this may have changed.
func (c *cluster) askNodes(plan *tablePlan, f *filter) (counts []int64, changed <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.data.plan != plan || c.filters.held[f.by.text] != f {
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
		if err := c.mayIndexLocked(i, f.by); err != nil {
			return nil, nil, err
		}
		n.asked = s
		s.tell(peer.ToNode{Index: &peer.Index{Plan: plan.fingerprint, ID: f.id, Filter: f.by.text, Job: f.by.job}})
	}
	if waits {
		return nil, c.filters.changed, nil
	}
	return counts, nil, nil
}

// mayIndexLocked returns an error if a filter is large, and the node is evaluating as many large ones as it may, of all clients or of one
// address.
func (c *cluster) mayIndexLocked(node int, by asked) error {
	all, own := 0, 0
	for _, f := range c.filters.held {
		if f.by.comparisons > smallComparisons && f.nodes[node].indexes(c.members[node].session) {
			all++
			if f.by.client == by.client {
				own++
			}
		}
	}
	switch {
	case by.comparisons <= smallComparisons:
		return nil
	case own >= mostOfClient:
		return status.Errorf(codes.ResourceExhausted, "filter: data node %d is evaluating %d other large filters of clients at %s: ask again later", node, own, by.client)
	case all >= mostLarge:
		return status.Errorf(codes.ResourceExhausted, "filter: data node %d is evaluating %d other large filters: ask again later", node, all)
	}
	return nil
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
