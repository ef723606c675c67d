// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package put

import (
	"iter"
	"maps"
	"slices"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

// transfer is an attempt of a part that one node sends to another.
type transfer struct {
	to, part int
	hash     string
}

// copyParts returns the orders that make some parts complete: an attempt that only one of the two nodes of a part has is sent to the other, if both
// nodes are connected. The receiver reports its arrival as it reports any part.
func (p *put) copyParts(there connected, parts iter.Seq[int]) (all []Order) {
	if p.Keep != protocol.KeepReplica || p.state == failed {
		return nil
	}
	orders := map[[2]int][]protocol.PutPart{}
	for part := range parts {
		own, other := p.Node(part), p.Copy(part)
		if !there[own] || !there[other] {
			continue
		}
		for _, way := range [][2]int{{own, other}, {other, own}} {
			have := p.on(way[1], part)[part]
			for _, a := range p.on(way[0], part)[part] {
				if !contains(have, a) && !p.ordered[transfer{way[1], part, a.Hash}] {
					orders[way] = append(orders[way], a)
				}
			}
		}
	}
	for _, way := range slices.SortedFunc(maps.Keys(orders), func(a, b [2]int) int { return slices.Compare(a[:], b[:]) }) {
		all = append(all, p.order(way[0], way[1], orders[way]))
	}
	return all
}

// numbers are those of parts.
func numbers(parts []protocol.PutPart) iter.Seq[int] {
	return func(yield func(int) bool) {
		for _, part := range parts {
			if !yield(part.Part) {
				return
			}
		}
	}
}

// order has one node send parts to another.
func (p *put) order(from, to int, parts []protocol.PutPart) Order {
	for _, part := range parts {
		p.ordered[transfer{to, part.Part, part.Hash}] = true
	}
	return Order{from, peer.ToNode{Copy: &peer.Copy{ID: p.ID, To: to, Parts: parts}}}
}

// lacks records parts that a node was to send and does not have.
func (p *put) lacks(node int, parts []protocol.PutPart) {
	for _, part := range parts {
		to := p.Node(part.Part)
		if to == node {
			to = p.Copy(part.Part)
		}
		t := transfer{to, part.Part, part.Hash}
		p.absent[t] = p.ordered[t]
		delete(p.ordered, t)
	}
}

// awaits reports whether transfers of parts that belong to a node are under way to it.
func (p *put) awaits(node int) bool {
	for t := range p.ordered {
		if t.to == node && p.Node(t.part) == node {
			return true
		}
	}
	return false
}

// recall finds the published parts after a restart of the head. It tries the parts that nodes reported as published, then these with the latest
// attempts of all other parts. The set whose fingerprint is that of the publication is the right one.
func (p *put) recall() {
	defer clear(p.recalled)
	for range 2 {
		if p.chosen != nil {
			return
		}
		parts := slices.SortedFunc(maps.Values(p.recalled), byNumber)
		if identity, err := fingerprint(p.Columns, parts); err == nil && identity == p.as.Fingerprint {
			p.chosen = parts
		}
		for _, part := range p.last() { // sent again to a node that was lost, which has not published them yet
			if _, ok := p.recalled[part.Part]; !ok {
				p.recalled[part.Part] = part
			}
		}
	}
}

// settle forgets the attempts that are not published, which nodes free.
func (p *put) settle() {
	if p.chosen == nil {
		return
	}
	p.settled = map[int]string{}
	for _, c := range p.chosen {
		p.settled[c.Part] = c.Hash
	}
	for _, side := range []map[int][]protocol.PutPart{p.parts, p.copies} {
		for part, attempts := range side {
			side[part] = slices.DeleteFunc(attempts, func(a protocol.PutPart) bool { return p.settled[part] != a.Hash })
			if len(side[part]) == 0 {
				delete(side, part)
			}
		}
	}
	maps.DeleteFunc(p.ordered, func(t transfer, _ bool) bool { return p.settled[t.part] != t.hash })
}
