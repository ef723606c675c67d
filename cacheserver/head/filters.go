// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

const (
	// indexWait is how long a request waits for the nodes to evaluate its filter.
	indexWait = 30 * time.Second
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
	places   *places   // of its rows, once all nodes have answered
}

// asked is a request for a filter.
type asked struct {
	text        string // canonical
	comparisons int64  // that evaluating it takes on a data node
	job         string // that of the request, or else client
	client      string // host of the client's address
}

// nodeFilter is the last answer of one node about a filter. After a new session has begun, the node is asked again: it may have restarted.
type nodeFilter struct {
	asked   *session // session over which the index was requested
	done    *session // session over which the node reported that it has the index
	rows    int64
	hash    string // of the selected rows; every answer must have the same; "" before the first one
	refusal error  // of the last request
}

// open returns the filter of a plan, for use by one request.
func (f *filters) open(plan *tablePlan, nodes int, by asked) (*filter, error) {
	one := f.held[by.text]
	if one == nil {
		if len(f.held) >= mostFilters && !f.forget() {
			return nil, status.Errorf(codes.ResourceExhausted, "filter: requests wait for %d other filters: ask again later", mostFilters)
		}
		id, err := fingerprintOf([]string{plan.fingerprint, by.text})
		if err != nil {
			return nil, err
		}
		one = &filter{id: id, nodes: make([]nodeFilter, nodes)}
		f.held[by.text] = one
	}
	if one.waiting == 0 { // otherwise another request has just been asking
		for i := range one.nodes {
			one.nodes[i].refusal = nil
		}
		one.by = by
	}
	one.waiting++
	one.touched = time.Now()
	return one, nil
}

// close ends the use of a filter by one request; canceled is the error of its context.
func (f *filter) close(canceled error) {
	patience := lapsedPatience
	if errors.Is(canceled, context.Canceled) {
		patience = leftPatience
	}
	f.waiting--
	f.needless = time.Now().Add(patience)
}

// indexed is the number of nodes that have the index of a filter.
func (f *filter) indexed(m members) (nodes int) {
	for i := range f.nodes {
		if s := m[i].session; s != nil && f.nodes[i].done == s {
			nodes++
		}
	}
	return nodes
}

// located returns the places of the filter's rows, once every node has answered; they don't change.
func (f *filter) located() (_ *places, err error) {
	if f.places != nil {
		return f.places, nil
	}
	counts := make([]int64, len(f.nodes))
	for i := range f.nodes {
		counts[i] = f.nodes[i].rows
	}
	f.places, err = newPlaces(counts)
	return f.places, err
}

// cancel tells nodes to stop evaluating filters that nobody waits for.
func (f *filters) cancel(m members, plan *tablePlan, now time.Time) {
	for _, one := range f.held {
		if one.waiting > 0 || now.Before(one.needless) {
			continue
		}
		for i := range one.nodes {
			if s := m[i].session; one.nodes[i].indexes(s) {
				one.nodes[i].asked = nil
				s.tell(peer.ToNode{Unindex: &peer.Unindex{Plan: plan.fingerprint, ID: one.id}})
			}
		}
	}
}

// indexes reports whether the node was asked for the index over a session, and has not answered.
func (n *nodeFilter) indexes(s *session) bool { return s != nil && n.asked == s && n.done != s }

// forget forgets the filter that was not requested for the longest time, if no request waits for it.
func (f *filters) forget() bool {
	var oldest *filter
	for _, one := range f.held {
		if one.waiting == 0 && (oldest == nil || one.touched.Before(oldest.touched)) {
			oldest = one
		}
	}
	if oldest == nil {
		return false
	}
	delete(f.held, oldest.by.text)
	return true
}

// ask requests the index of a filter from the connected nodes that have none and were not asked.
func (f *filters) ask(m members, plan *tablePlan, one *filter) error {
	if one.failure != "" {
		return status.Error(codes.FailedPrecondition, one.failure)
	}
	for i := range one.nodes {
		n, s := &one.nodes[i], m[i].session
		if n.refusal != nil {
			return n.refusal
		}
		if s == nil || n.done == s || n.asked == s {
			continue
		}
		if err := f.mayIndex(i, s, one.by); err != nil {
			return err
		}
		n.asked = s
		s.tell(peer.ToNode{Index: &peer.Index{Plan: plan.fingerprint, ID: one.id, Filter: one.by.text, Job: one.by.job}})
	}
	return nil
}

// mayIndex returns an error if a filter is large, and the node is evaluating as many large ones as it may, of all clients or of one
// address.
func (f *filters) mayIndex(node int, s *session, by asked) error {
	all, own := 0, 0
	for _, one := range f.held {
		if one.by.comparisons > smallComparisons && one.nodes[node].indexes(s) {
			all++
			if one.by.client == by.client {
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

// indexed records a node's answer m about a filter. address and rows are the node's: rows is how many it holds.
func (f *filters) indexed(s *session, address string, m peer.Indexed, rows int64) error {
	if m.Rows < 0 || m.Rows > rows {
		return status.Errorf(codes.InvalidArgument, "data node %d says that a filter selects %d of its %d rows", s.index, m.Rows, rows)
	}
	defer f.wake()
	for _, one := range f.held {
		n := &one.nodes[s.index]
		if slices.Contains(m.Dropped, one.id) {
			n.asked, n.done = nil, nil
		}
		if one.id == m.ID {
			one.answered(s, address, m)
		}
	}
	return nil
}

func (f *filter) answered(s *session, address string, m peer.Indexed) {
	n := &f.nodes[s.index]
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
