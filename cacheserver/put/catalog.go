// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package put

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

const (
	// mostPuts is the maximum number of puts and datasets of a cache.
	mostPuts = 256
	// mostOfWriter is the maximum number of those of one writer, if writers have names.
	mostOfWriter = mostPuts / 2
	// Retain is how long a dataset that was replaced can still be read.
	Retain = 10 * time.Minute
	// usualTTL is how long a put without new parts is kept, unless the client says how long.
	usualTTL = time.Hour
)

// Catalog is the puts and datasets of a cache, as its head knows them. A restarted head learns them from the data nodes. It is not safe for
// concurrent use.
type Catalog struct {
	// Commits are the last commits of puts, by id. They are only shown.
	Commits map[string]*protocol.CommitStatus

	// Room returns an error if there is no memory for that many bytes more; nil: there always is.
	Room func(bytes int64) error

	puts   map[string]*put
	told   connected // the nodes that have reported all parts and datasets that they hold
	orders []Order
	// gone are the ids of puts that were removed: a node that did not hear of it, as its connection broke, would bring them back.
	gone    map[string]bool
	freeing freeing
}

// mostGone bounds the ids of puts that were removed.
const mostGone = 1 << 16

// New returns the catalog of a cache that has no datasets.
func New(nodes int) *Catalog {
	return &Catalog{Commits: map[string]*protocol.CommitStatus{}, puts: map[string]*put{}, told: make(connected, nodes), gone: map[string]bool{}, freeing: freeing{}}
}

// Orders returns the messages to send to nodes since the last call.
func (c *Catalog) Orders() []Order {
	orders := c.orders
	c.orders = nil
	return orders
}

func (c *Catalog) tell(node int, m peer.ToNode) { c.orders = append(c.orders, Order{node, m}) }

func (c *Catalog) tellAll(m peer.ToNode) {
	for node := range c.told {
		c.tell(node, m)
	}
}

// remove forgets a put, and tells the nodes to free it.
func (c *Catalog) remove(id string) {
	delete(c.puts, id)
	delete(c.Commits, id)
	if len(c.gone) >= mostGone {
		clear(c.gone)
	}
	c.gone[id] = true
	c.tellAll(peer.ToNode{Unput: &peer.Unput{ID: id}})
}

// Begin adds a put, unless one of the same recipe goes on, whose id it then returns, or has made a dataset, whose fingerprint it returns.
func (c *Catalog) Begin(of peer.Put, now time.Time) (b protocol.Begun, err error) {
	if missing := c.told.missing(); missing != "" {
		return b, status.Error(codes.Unavailable, missing)
	}
	if made := c.Made(of.Name, of.Recipe, of.Source); of.Recipe != "" && made != "" {
		return protocol.Begun{Exists: made}, nil
	}
	for _, p := range c.puts {
		if of.Recipe == "" || p.Name != of.Name || p.Recipe != of.Recipe || p.Source != of.Source {
			continue
		}
		if p.state <= publishing && p.Parts == of.Parts && slices.Equal(p.Columns, of.Columns) {
			return protocol.Begun{Put: p.ID, Joined: true}, nil
		}
	}
	if err := c.free(of.Name, of.Mode); err != nil {
		return b, err
	}
	p := newPut(of, now)
	if err := hasRoom(c, p); err != nil {
		return b, err
	}
	c.puts[of.ID] = p
	c.tellAll(peer.ToNode{Put: &p.Put})
	return protocol.Begun{Put: of.ID}, nil
}

// hasRoom returns why there is no room for another put.
func hasRoom(c *Catalog, p *put) error {
	if len(c.puts) >= mostPuts {
		return status.Errorf(codes.ResourceExhausted, "%d puts and datasets, as many as a cache may have: drop some, by put.drop and put.abort", len(c.puts))
	}
	own := 0
	for _, other := range c.puts {
		if other.Writer == p.Writer {
			own++
		}
	}
	if p.Writer != "" && own >= mostOfWriter {
		return status.Errorf(codes.ResourceExhausted, "%d puts and datasets of %s, as many as one writer may have: drop some, by put.drop and put.abort", own, p.Writer)
	}
	if c.Room == nil {
		return nil
	}
	if err := c.Room(p.memory()); err != nil {
		return status.Errorf(codes.ResourceExhausted, "parts: the head's memory for the records of %d parts and their schema: %v: put fewer, larger parts, or drop datasets", p.Parts, err)
	}
	return nil
}

// Memory is about the memory of a catalog, in bytes.
func Memory(c *Catalog) (bytes int64) {
	for _, p := range c.puts {
		bytes += p.memory()
	}
	return bytes
}

// Made returns the fingerprint of the dataset of a name that was made by a recipe from a source; "" if there is none.
func (c *Catalog) Made(name, recipe, source string) string {
	for _, p := range c.puts {
		if p.state == ready && p.Name == name && p.Recipe == recipe && p.Source == source {
			return p.as.Fingerprint
		}
	}
	return ""
}

// free returns an error if a put of a mode can't have a name.
func (c *Catalog) free(name, mode string) error {
	for _, p := range c.puts {
		if mode == protocol.PutCreate && p.Name == name && (p.state == ready || p.state == publishing) {
			return status.Errorf(codes.AlreadyExists, `dataset %s is there, with fingerprint %s: put it with mode "replace", or take another name`, name, p.as.Fingerprint)
		}
	}
	return nil
}

// current is the dataset that a name means, nil if there is none.
func (c *Catalog) current(name string) (found *put) {
	for _, p := range c.puts {
		if p.Name == name && (p.state == ready || p.state == failed) && (found == nil || p.as.At > found.as.At) {
			found = p
		}
	}
	return found
}

// connected is, by node, whether it is connected.
type connected []bool

// missing says which nodes are not connected; "" if all are.
func (c connected) missing() string {
	var absent []int
	for node, there := range c {
		if !there {
			absent = append(absent, node)
		}
	}
	if absent == nil {
		return ""
	}
	return fmt.Sprintf("puts: data node %s is not there: try again", ranges(absent))
}

// find returns a put that goes on or has made a dataset.
func (c *Catalog) find(id string) (*put, error) {
	if p := c.puts[id]; p != nil {
		return p, nil
	}
	if missing := c.told.missing(); missing != "" {
		return nil, status.Error(codes.Unavailable, missing)
	}
	return nil, status.Errorf(codes.NotFound, "put: no put %.64q: it was aborted, or no part came for its ttl_s: begin it again", id)
}

// Status returns what nodes have of a put: of up to so many parts from one on, 0 means all.
func (c *Catalog) Status(id string, from, most int) (s protocol.PutState, of peer.Put, err error) {
	p, err := c.find(id)
	if err != nil {
		return s, of, err
	}
	s = protocol.PutState{Staged: p.staged(), Commit: c.Commits[id]}
	s.Parts, s.Lost, s.Next = p.page(from, most)
	if p.state == ready || p.state == retired {
		s.Dataset = p.reference()
	}
	return s, p.Put, nil
}

func (p *put) reference() string { return p.Name + "@" + p.as.Fingerprint }

// Gather adds receipts to those for a publication, which are from in number so far, and returns all.
func (c *Catalog) Gather(id string, from int, receipts []protocol.PutPart) ([]protocol.PutPart, error) {
	p, err := c.find(id)
	if err != nil {
		return nil, err
	}
	if from == 0 {
		p.gathered = nil
	}
	if from != len(p.gathered) || from+len(receipts) > protocol.MostParts {
		return nil, status.Errorf(codes.InvalidArgument, "from: %d, and there are %d receipts before these %d, of at most %d: begin with 0 again", from, len(p.gathered), len(receipts), protocol.MostParts)
	}
	p.gathered = append(p.gathered, receipts...)
	return p.gathered, nil
}

// Publish begins to publish the parts of receipts or, if that is nil, the last good attempts of all parts. Done tells when it has ended.
func (c *Catalog) Publish(id string, receipts []protocol.PutPart, now time.Time) error {
	p, err := c.find(id)
	if err != nil {
		return err
	}
	parts := receipts
	if receipts == nil {
		parts = p.last()
		if p.state != staging {
			parts = p.chosen
		}
	}
	identity, err := fingerprint(p.Columns, parts)
	if err != nil {
		return err
	}
	if p.state != staging {
		if receipts != nil && identity != p.as.Fingerprint {
			return status.Errorf(codes.FailedPrecondition, "put: it was published with other parts, as %s: begin another one", p.reference())
		}
		return nil
	}
	if err := c.mayPublish(p, receipts, parts); err != nil {
		return err
	}
	p.chosen, p.state = parts, publishing
	p.as = peer.Publication{Fingerprint: identity, At: now.UnixNano()}
	for _, part := range parts {
		p.as.Rows += part.Rows
	}
	clear(p.asked)
	clear(p.held)
	c.advance(p, now)
	return nil
}

// mayPublish returns why parts can't be published.
func (c *Catalog) mayPublish(p *put, receipts, parts []protocol.PutPart) error {
	if missing := c.told.missing(); missing != "" {
		return status.Error(codes.Unavailable, missing)
	}
	var lost []int
	if receipts == nil {
		lost = slices.Collect(maps.Keys(p.lost))
	}
	for i, part := range parts {
		if i > 0 && parts[i-1].Part >= part.Part {
			return status.Errorf(codes.InvalidArgument, "receipts: want one of each part, and part %d comes twice", part.Part)
		}
		if !p.has(part) {
			lost = append(lost, part.Part)
		}
	}
	if len(lost) > 0 {
		return status.Errorf(codes.FailedPrecondition, "parts %s are lost, since a data node restarted: put them again", ranges(lost))
	}
	return c.free(p.Name, p.Mode)
}

// Done returns the result of Publish, false if it goes on.
func (c *Catalog) Done(id string) (protocol.Published, bool, error) {
	p, err := c.find(id)
	switch {
	case err != nil:
		return protocol.Published{}, true, err
	case p.state == publishing:
		return protocol.Published{}, false, nil
	case p.state == ready || p.state == retired:
		return protocol.Published{Dataset: p.reference(), Rows: p.as.Rows}, true, nil
	}
	return protocol.Published{}, true, status.Error(codes.FailedPrecondition, p.failure)
}

// Abort gives up a put that is not published.
func (c *Catalog) Abort(id string) error {
	p, err := c.find(id)
	if err != nil {
		return err
	}
	if p.state > publishing {
		return status.Errorf(codes.FailedPrecondition, "put: it is published as %s: use put.drop", p.reference())
	}
	c.remove(id)
	return nil
}

// Drop removes a dataset, by its name all versions of it. All nodes must be there. The drop has ended when Freeing returns "".
func (c *Catalog) Drop(ref string) error {
	if missing := c.told.missing(); missing != "" {
		return status.Error(codes.Unavailable, missing)
	}
	name, of := protocol.SplitReference(ref)
	found := Freeing(c, ref) != ""
	for id, p := range c.puts {
		if p.Name == name && p.state > publishing && (of == "" || of == p.as.Fingerprint) {
			found = true
			c.freeing.add(p)
			c.remove(id)
		}
	}
	if !found {
		return c.unknown(ref)
	}
	return nil
}

// unknown is the error for a dataset that there is not.
func (c *Catalog) unknown(ref string) error {
	if missing := c.told.missing(); missing != "" {
		return status.Error(codes.Unavailable, missing)
	}
	names := map[string]bool{}
	for _, p := range c.puts {
		if p.state == ready {
			names[p.Name] = true
		}
	}
	there := "none"
	if len(names) > 0 {
		there = strings.Join(slices.Sorted(maps.Keys(names)), ", ")
	}
	return status.Errorf(codes.NotFound, "dataset: no dataset %.100q; there are: %s", ref, there)
}

// Tick gives up puts that nobody continues, and frees datasets that were replaced.
func (c *Catalog) Tick(now time.Time) (expired []string) {
	for id, p := range c.puts {
		ttl := usualTTL
		if p.TTL > 0 {
			ttl = time.Duration(p.TTL) * time.Second
		}
		switch {
		case p.state == staging && now.Sub(p.touched) > ttl:
			expired = append(expired, p.Name)
			c.remove(id)
		case p.state == retired && now.Sub(p.retired) > Retain:
			c.remove(id)
		}
	}
	return expired
}
