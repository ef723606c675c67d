// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package put is the life of puts, by which clients make datasets of rows that they send: which parts the data nodes have of each, what is
// published, and what must be freed. It does no I/O.
package put

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

// state is the state of a put.
type state int

const (
	staging    state = iota // parts are put
	publishing              // nodes make the rows readable, and some have not answered
	ready                   // a dataset that can be read while all nodes are there
	failed                  // rows of a published dataset are lost
	retired                 // a dataset that another one of the name has replaced
)

// put is a put and, once it is published, the dataset that it made.
type put struct {
	peer.Put
	state   state
	parts   map[int][]protocol.PutPart // good attempts, the last one at the end
	copies  map[int][]protocol.PutPart // like parts, for the copies
	lost    map[int]bool               // parts that a node had, and lost
	ordered map[transfer]bool          // transfers that were ordered and have not arrived
	touched time.Time                  // when a part was last staged
	retired time.Time
	failure string

	gathered []protocol.PutPart // the receipts for a publication so far

	chosen []protocol.PutPart // the published parts, by number; nil until publication
	as     peer.Publication
	absent map[transfer]bool // transfers that were ordered, whose sender has reported that it lacks the attempt
	// recalled are the published parts that nodes have reported since the head restarted, until chosen is known again.
	recalled map[int]protocol.PutPart
	settled  map[int]string   // hash of each chosen part; set once nodes were told to free all other attempts
	asked    []bool           // by node: whether it was sent the order to publish
	held     []*peer.HeldRows // by node: the published rows that it reports; nil before
}

// Order is a message to a node.
type Order struct {
	Node    int
	Message peer.ToNode
}

func newPut(of peer.Put, now time.Time) *put {
	return &put{
		Put: of, parts: map[int][]protocol.PutPart{}, copies: map[int][]protocol.PutPart{}, lost: map[int]bool{}, ordered: map[transfer]bool{}, absent: map[transfer]bool{}, recalled: map[int]protocol.PutPart{}, touched: now,
		asked: make([]bool, of.Nodes), held: make([]*peer.HeldRows, of.Nodes),
	}
}

// on returns the parts of the node if a part is one of its own, their copies if that is what the node has of it, otherwise nil.
func (p *put) on(node, part int) map[int][]protocol.PutPart {
	switch node {
	case p.Node(part):
		return p.parts
	case p.Copy(part):
		return p.copies
	}
	return nil
}

// add records parts that a node has.
func (p *put) add(node int, parts []protocol.PutPart, now time.Time) {
	for _, part := range parts {
		if p.settled != nil && p.settled[part.Part] != part.Hash {
			continue // the node was told to free it
		}
		there := p.on(node, part.Part)
		kept := append(slices.DeleteFunc(there[part.Part], func(o protocol.PutPart) bool { return o.Hash == part.Hash }), part)
		there[part.Part] = kept[max(0, len(kept)-peer.MostAttempts):]
		delete(p.lost, part.Part)
		delete(p.ordered, transfer{node, part.Part, part.Hash})
		p.touched = now
	}
}

// leave records that a node is not connected: what it has is not known.
func (p *put) leave(node int) {
	p.asked[node], p.held[node] = false, nil
	p.suspect(node)
	for _, transfers := range []map[transfer]bool{p.ordered, p.absent} {
		maps.DeleteFunc(transfers, func(t transfer, _ bool) bool { return p.on(node, t.part) != nil })
	}
}

// suspect treats all parts and copies of a node as lost until the node reports them again.
func (p *put) suspect(node int) {
	for _, side := range []map[int][]protocol.PutPart{p.parts, p.copies} {
		for part := range side {
			if there := p.on(node, part); there != nil {
				delete(there, part)
				p.lost[part] = len(p.attempts(part)) == 0
			}
		}
	}
	maps.DeleteFunc(p.lost, func(_ int, lost bool) bool { return !lost })
}

// attempts are the good attempts of a part, wherever they are.
func (p *put) attempts(part int) []protocol.PutPart {
	if own := p.parts[part]; len(own) > 0 {
		return own
	}
	return p.copies[part]
}

// complete reports whether all nodes have the rows of the publication.
func (p *put) complete() bool {
	for _, h := range p.held {
		if h == nil || h.Fingerprint != p.as.Fingerprint {
			return false
		}
	}
	return len(p.held) > 0
}

// nodeParts are the chosen parts of a node, with those of which it has the copies.
func (p *put) nodeParts(node int) (parts []protocol.PutPart) {
	for _, c := range p.chosen {
		if p.on(node, c.Part) != nil {
			parts = append(parts, c)
		}
	}
	return parts
}

// last are the last good attempts of all parts, in order.
func (p *put) last() []protocol.PutPart {
	all := make([]protocol.PutPart, 0, len(p.parts))
	for _, attempts := range p.parts {
		all = append(all, attempts[len(attempts)-1])
	}
	for part, copies := range p.copies {
		if p.parts[part] == nil {
			all = append(all, copies[len(copies)-1])
		}
	}
	slices.SortFunc(all, byNumber)
	return all
}

func byNumber(a, b protocol.PutPart) int { return a.Part - b.Part }

// page are the last good attempts of parts, and the parts that are lost, from one number on; at most so many of both, 0: all. next is where the
// next page begins, 0 if there is none.
func (p *put) page(from, most int) (parts []protocol.PutPart, lost []int, next int) {
	parts, lost = []protocol.PutPart{}, []int{}
	for part := max(from, 0); part < p.Parts; part++ {
		attempts := p.attempts(part)
		if len(attempts) == 0 && !p.lost[part] {
			continue
		}
		if most > 0 && len(parts)+len(lost) == most {
			return parts, lost, part
		}
		if len(attempts) > 0 {
			parts = append(parts, attempts[len(attempts)-1])
		} else {
			lost = append(lost, part)
		}
	}
	return parts, lost, 0
}

// memory is about the memory of the put's record: of its schema, and of all parts that it may have until it is published, then of those that it has.
func (p *put) memory() int64 {
	parts := len(p.chosen)
	if p.state < ready {
		parts = p.Parts
	}
	if p.Keep == protocol.KeepReplica {
		parts *= 2
	}
	return p.Memory + int64(parts)*partMemory
}

// partMemory is the memory of what the catalog has of a part, with a number of attempts, measured.
const partMemory = 640

// Parts is the number of parts that Status has to say something about.
func Parts(c *Catalog, id string) int {
	p := c.puts[id]
	if p == nil {
		return 0
	}
	return len(p.parts) + len(p.copies) + len(p.lost)
}

// staged is the number of bytes of all parts, with copies, and with attempts that are not the last.
func (p *put) staged() (bytes int64) {
	for _, side := range []map[int][]protocol.PutPart{p.parts, p.copies} {
		for _, attempts := range side {
			for _, a := range attempts {
				bytes += a.Bytes
			}
		}
	}
	return bytes
}

// Used is the number of bytes that data nodes have of a writer's puts and datasets, with copies.
func Used(c *Catalog, writer string) (bytes int64) {
	for _, p := range c.puts {
		if p.Writer == writer && p.state != failed {
			bytes += p.staged()
		}
	}
	return bytes
}

// has reports whether a part was staged with these rows.
func (p *put) has(part protocol.PutPart) bool {
	return contains(p.parts[part.Part], part) || contains(p.copies[part.Part], part)
}

func contains(attempts []protocol.PutPart, part protocol.PutPart) bool {
	return slices.ContainsFunc(attempts, func(o protocol.PutPart) bool { return o.Hash == part.Hash && o.Rows == part.Rows })
}

// orderVersion is the version of the epoch order used with row indices.
const orderVersion = 1

// fingerprint identifies the rows of parts in order: what determines their indices, and nothing else.
func fingerprint(columns [][3]string, parts []protocol.PutPart) (string, error) {
	type part struct {
		Part int
		Rows int64
		Hash string
	}
	content := make([]part, len(parts))
	for i, p := range parts {
		content[i] = part{p.Part, p.Rows, p.Hash}
	}
	text, err := json.Marshal(struct {
		OrderVersion int
		Columns      [][3]string
		Parts        []part
	}{orderVersion, columns, content})
	if err != nil {
		return "", fmt.Errorf("fingerprint a put: %w", err)
	}
	digest := sha256.Sum256(text)
	return hex.EncodeToString(digest[:16]), nil
}

// ranges writes numbers as ranges, such as 1, 4-7; at most some of them.
func ranges(numbers []int) string {
	slices.Sort(numbers)
	text := ""
	for i, shown := 0, 0; i < len(numbers); shown++ {
		end := i
		for end+1 < len(numbers) && numbers[end+1] == numbers[end]+1 {
			end++
		}
		if text != "" {
			text += ", "
		}
		if shown == mostShown {
			return text + fmt.Sprintf("and %d more", len(numbers)-i)
		}
		text += fmt.Sprint(numbers[i])
		if end > i {
			text += fmt.Sprintf("-%d", numbers[end])
		}
		i = end + 1
	}
	return text
}

// mostShown is how many ranges of numbers of parts a message shows.
const mostShown = 10
