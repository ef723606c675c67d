// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package put

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

// Join records that a node has connected. It will tell what it has, and gets the puts that it may not know.
func (c *Catalog) Join(node int) {
	c.Leave(node)
	for _, p := range c.puts {
		if p.state != failed {
			c.tell(node, peer.ToNode{Put: &p.Put})
		}
	}
}

// Leave records that a node is not connected any more.
func (c *Catalog) Leave(node int) {
	c.told[node] = false
	for _, p := range c.puts {
		p.leave(node)
	}
}

// Staged records what a node has.
func (c *Catalog) Staged(node int, m peer.Staged, now time.Time) error {
	if m.Freed {
		c.freeing.freed(node, m.ID)
		return nil
	}
	p := c.puts[m.ID]
	if p == nil && m.Put != nil && !c.gone[m.ID] && m.Put.Nodes == len(c.told) && len(c.puts) < 2*mostPuts {
		p = newPut(*m.Put, now)
		c.puts[m.ID] = p
		c.tellAll(peer.ToNode{Put: m.Put}) // nodes that restarted and joined earlier do not know it
	}
	switch {
	case p == nil || p.state == failed:
		if m.ID != "" {
			c.tell(node, peer.ToNode{Unput: &peer.Unput{ID: m.ID}})
		}
	default:
		if err := p.check(node, m); err != nil {
			return err
		}
		p.add(node, m.Parts, now)
		p.lacks(node, m.Absent)
		c.holds(p, node, m)
		if m.Put == nil && len(m.Parts) > 0 {
			if p.Node(m.Parts[0].Part) == node { // before it reported, the node sent the copies; their node may have been lost meanwhile
				c.orders = append(c.orders, p.copyParts(c.told, numbers(m.Parts))...)
			}
			c.tell(node, peer.ToNode{Known: &peer.Known{ID: m.ID, Parts: m.Parts}})
		}
	}
	if m.All {
		c.told[node] = true
		c.freeing.remind(c, node)
		for _, p := range c.puts {
			c.orders = append(c.orders, p.copyParts(c.told, maps.Keys(p.parts))...)
			c.orders = append(c.orders, p.copyParts(c.told, maps.Keys(p.copies))...)
			c.advance(p, now)
		}
	} else if p != nil {
		c.advance(p, now)
	}
	return nil
}

// check returns an error if a node can't have what it reports.
func (p *put) check(node int, m peer.Staged) error {
	for _, part := range m.Parts {
		if part.Part < 0 || part.Part >= p.Parts || p.on(node, part.Part) == nil {
			return status.Errorf(codes.InvalidArgument, "data node %d reports part %d of a put of %d parts, which is not its own", node, part.Part, p.Parts)
		}
	}
	if h := m.Has; h != nil && (len(h.ColumnBytes) != len(p.Columns) || len(h.Fits) != len(p.Columns)) {
		return status.Errorf(codes.InvalidArgument, "data node %d reports bytes of %d columns and integers of %d, of a dataset of %d", node, len(h.ColumnBytes), len(h.Fits), len(p.Columns))
	}
	return nil
}

// holds records the rows of a publication that a node has, or why it has not.
func (c *Catalog) holds(p *put, node int, m peer.Staged) {
	if m.Refusal != "" && p.state == publishing {
		c.unpublish(p, m.Refusal)
		return
	}
	if m.Has == nil {
		return
	}
	if p.state == staging && m.Has.At > p.as.At { // the head has restarted since
		p.as = m.Has.Publication
		clear(p.recalled)
	}
	if p.chosen == nil && m.Has.At == p.as.At {
		for _, part := range m.Chosen {
			p.recalled[part.Part] = part
		}
	}
	p.held[node] = m.Has
	if !m.Has.Settled && (p.state == ready || p.state == retired) {
		c.tell(node, peer.ToNode{Settle: &peer.Settle{ID: p.ID}})
	}
}

// unpublish ends a publication that failed: the put goes on.
func (c *Catalog) unpublish(p *put, reason string) {
	p.state, p.failure, p.chosen = staging, reason, nil
	clear(p.held)
}

// advance does what can be done for a put now.
func (c *Catalog) advance(p *put, now time.Time) {
	switch {
	case p.state == staging && p.as.Fingerprint != "" && p.complete() && c.told.missing() == "":
		c.becomeReady(p, now)
	case p.state == staging && p.as.Fingerprint != "" && c.told.missing() == "" && slices.ContainsFunc(p.held, func(h *peer.HeldRows) bool { return h != nil && h.Settled }):
		p.state = ready // as it was before the head restarted; a node has lost its rows since
		p.recall()
		p.settle()
		c.tellAll(peer.ToNode{Settle: &peer.Settle{ID: p.ID}})
		c.advance(p, now)
	case p.state == publishing || p.state == ready || p.state == retired:
		for node := range p.held {
			if c.told[node] && p.held[node] == nil && !p.asked[node] {
				c.ask(p, node)
			}
		}
		if p.state == publishing && p.complete() {
			c.becomeReady(p, now)
		}
	}
}

// ask has a node publish its parts. If it does not have them, another one sends them, or they are lost.
func (c *Catalog) ask(p *put, node int) {
	if p.awaits(node) {
		return
	}
	parts := p.nodeParts(node)
	missing, sought := []int{}, []protocol.PutPart{}
	for _, part := range parts {
		switch {
		case p.Node(part.Part) != node || contains(p.parts[part.Part], part):
		case p.Keep == protocol.KeepReplica && !p.absent[transfer{node, part.Part, part.Hash}]:
			sought = append(sought, part)
		default:
			missing = append(missing, part.Part)
		}
	}
	switch {
	case p.Keep == protocol.KeepReplica && c.told.missing() != "" && (p.chosen == nil || len(missing)+len(sought) > 0):
		return // a node that has not joined yet may have the missing parts
	case p.state != publishing && (p.chosen == nil || len(missing) > 0):
		if p.chosen == nil { // they are not known since the head restarted
			for part := range p.Parts {
				if p.Node(part) == node {
					missing = append(missing, part)
				}
			}
		}
		c.fail(p, fmt.Sprintf("data node %d restarted, and parts %s of dataset %s are lost: put it again", node, ranges(missing), p.Name))
	case len(missing) > 0:
		c.unpublish(p, fmt.Sprintf("parts %s are lost, since data node %d restarted: put them again", ranges(missing), node))
	case len(sought) > 0:
		c.orders = append(c.orders, p.order(p.Copy(sought[0].Part), node, sought))
	default:
		p.asked[node] = true
		c.tell(node, peer.ToNode{Publish: &peer.Publish{ID: p.ID, As: p.as, Parts: parts}})
	}
}

// fail records that rows of a dataset are lost, and has the nodes free the others.
func (c *Catalog) fail(p *put, reason string) {
	if p.state == retired {
		c.remove(p.ID)
		return
	}
	p.state, p.failure = failed, reason
	c.tellAll(peer.ToNode{Unput: &peer.Unput{ID: p.ID}})
}

// becomeReady makes a publication the dataset of its name. The one that it replaces can be read for a while.
func (c *Catalog) becomeReady(p *put, now time.Time) {
	p.state = ready
	p.recall()
	p.settle()
	c.tellAll(peer.ToNode{Settle: &peer.Settle{ID: p.ID}})
	for id, other := range c.puts {
		if other == p || other.Name != p.Name || other.state != ready && other.state != failed {
			continue
		}
		older := other
		if other.as.At > p.as.At {
			older = p
		}
		if older.state == failed {
			delete(c.puts, id)
			delete(c.Commits, id)
			continue
		}
		older.state, older.retired = retired, now
	}
}

// Dataset is a dataset that can be read.
type Dataset struct {
	peer.Put
	peer.Publication
	Nodes []peer.HeldRows // by node
}

// Find returns the dataset of a reference.
func (c *Catalog) Find(ref string) (*Dataset, error) {
	name, of := protocol.SplitReference(ref)
	p := c.current(name)
	if of != "" {
		p = nil
		for _, each := range c.puts {
			if each.Name == name && each.as.Fingerprint == of && (each.state == ready || each.state == retired || each.state == failed) && (p == nil || each.state < p.state) {
				p = each
			}
		}
	}
	switch {
	case p == nil:
		return nil, c.unknown(ref)
	case p.state == failed:
		return nil, status.Error(codes.FailedPrecondition, p.failure)
	}
	return c.dataset(p)
}

func (c *Catalog) dataset(p *put) (*Dataset, error) {
	d := &Dataset{Put: p.Put, Publication: p.as, Nodes: make([]peer.HeldRows, len(p.held))}
	for node, held := range p.held {
		if held == nil {
			return nil, status.Errorf(codes.Unavailable, "dataset %s: data node %d is not there, or restarted", p.Name, node)
		}
		d.Nodes[node] = *held
	}
	return d, nil
}

// List describes all datasets, by name and then the latest first.
func (c *Catalog) List() []protocol.DatasetStatus {
	var all []*put
	for _, p := range c.puts {
		if p.state >= ready {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *put) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(b.as.At, a.as.At)) })
	list := make([]protocol.DatasetStatus, len(all))
	for i, p := range all {
		list[i] = protocol.DatasetStatus{Name: p.Name, Fingerprint: p.as.Fingerprint, Rows: p.as.Rows, State: p.state.String(), Reason: p.failure, Published: p.as.At / int64(time.Second), Commit: c.Commits[p.ID]}
		for _, h := range p.held {
			if h != nil {
				list[i].Bytes += h.Bytes
			} else if p.state == ready {
				list[i].State = "Unavailable"
			}
		}
	}
	return list
}

// String is the state as in statuses.
func (s state) String() string {
	return [...]string{staging: "Staging", publishing: "Publishing", ready: "Ready", failed: "Failed", retired: "Replaced"}[s]
}
