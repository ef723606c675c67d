// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package put

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

// simNode is a data node as far as puts go. Messages in both directions arrive in order, some time later.
type simNode struct {
	connected bool
	puts      map[string]*simPut
	in        []peer.ToNode
	out       []peer.Staged
}

type simPut struct {
	spec  peer.Put
	parts []protocol.PutPart
	has   *peer.HeldRows
}

// sim is a head and its data nodes, any of which may stop or lose its connection at any time.
type sim struct {
	*rand.Rand
	t       *testing.T
	catalog *Catalog
	nodes   []*simNode
	now     time.Time
	puts    int
	// made are the rows of each part that a client has a receipt for, by put.
	made map[string]map[int]protocol.PutPart
	// tried are the parts with which a put was to be published last, chosen those with which it was first.
	tried, chosen map[string][]protocol.PutPart

	published map[string]string
	read      int
	dropped   map[string]bool // datasets that were dropped since the head started
}

func (s *sim) flush() {
	for _, o := range s.catalog.Orders() {
		if n := s.nodes[o.Node]; n.connected {
			n.in = append(n.in, o.Message)
		}
	}
}

// deliver delivers a message to or from a node.
func (s *sim) deliver(i int) {
	n := s.nodes[i]
	if len(n.in) > 0 && s.IntN(2) == 0 {
		m := n.in[0]
		n.in = n.in[1:]
		n.obey(m)
		return
	}
	if len(n.out) > 0 {
		m := n.out[0]
		n.out = n.out[1:]
		if err := s.catalog.Staged(i, m, s.now); err != nil {
			s.t.Fatal(err)
		}
		for _, p := range m.Parts {
			if s.made[m.ID] != nil && m.Put == nil { // Known: the client gets its receipt
				s.made[m.ID][p.Part] = p
			}
		}
		s.flush()
	}
}

func (n *simNode) obey(m peer.ToNode) {
	switch {
	case m.Put != nil && n.puts[m.Put.ID] == nil:
		n.puts[m.Put.ID] = &simPut{spec: *m.Put}
	case m.Unput != nil:
		delete(n.puts, m.Unput.ID)
	case m.Settle != nil && n.puts[m.Settle.ID] != nil && n.puts[m.Settle.ID].has != nil:
		n.puts[m.Settle.ID].has.Settled = true
	case m.Publish != nil:
		p := n.puts[m.Publish.ID]
		if p == nil {
			n.out = append(n.out, peer.Staged{ID: m.Publish.ID, Refusal: "restarted"})
			return
		}
		has := &peer.HeldRows{Publication: m.Publish.As, ColumnBytes: make([]int64, 1), Fits: make([]byte, 1)}
		for _, want := range m.Publish.Parts {
			if !slices.ContainsFunc(p.parts, func(o protocol.PutPart) bool { return o.Part == want.Part && o.Hash == want.Hash }) {
				n.out = append(n.out, peer.Staged{ID: m.Publish.ID, Refusal: "lost"})
				return
			}
			has.NodeRows += want.Rows
		}
		p.has = has
		copied := *has
		n.out = append(n.out, peer.Staged{ID: m.Publish.ID, Has: &copied})
	}
}

// connect joins a node, which tells what it has.
func (s *sim) connect(i int) {
	n := s.nodes[i]
	n.connected, n.in, n.out = true, nil, nil
	s.catalog.Join(i)
	for id, p := range n.puts {
		of := p.spec
		m := peer.Staged{Put: &of, ID: id, Parts: slices.Clone(p.parts)}
		if p.has != nil {
			has := *p.has
			m.Has = &has
		}
		n.out = append(n.out, m)
	}
	n.out = append(n.out, peer.Staged{All: true})
	s.flush()
}

func (s *sim) disconnect(i int) {
	n := s.nodes[i]
	n.connected, n.in, n.out = false, nil, nil
	s.catalog.Leave(i)
}

// stage puts a part, or an attempt with other rows.
func (s *sim) stage(id string) {
	n := s.nodes[s.IntN(len(s.nodes))]
	p := n.puts[id]
	if p == nil || !n.connected {
		return
	}
	number := s.IntN(p.spec.Parts)
	if s.nodes[p.spec.Node(number)] != n {
		return
	}
	of := part(number, int64(number+1+s.IntN(2)))
	if p.has != nil && p.has.Settled {
		return
	}
	p.parts = append(p.parts, of)
	n.out = append(n.out, peer.Staged{ID: id, Parts: []protocol.PutPart{of}})
}

// publish publishes with the receipts of a put or, if it was tried before, with the same ones.
func (s *sim) publish(id string) {
	receipts := s.chosen[id]
	if receipts == nil {
		for number := range len(s.nodes) * 3 {
			if p, ok := s.made[id][number]; ok {
				receipts = append(receipts, p)
			}
		}
		if receipts == nil {
			return
		}
	}
	err := s.catalog.Publish(id, receipts, s.now)
	switch status.Code(err) {
	case codes.OK:
		if s.chosen[id] == nil {
			s.tried[id] = receipts
		}
	case codes.Unavailable, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition:
	default:
		s.t.Fatal(err)
	}
	s.flush()
}

// drop drops a dataset.
func (s *sim) drop(id string) {
	p := s.catalog.puts[id]
	if p == nil || p.state <= publishing {
		return
	}
	if err := s.catalog.Drop(p.reference()); err == nil {
		s.dropped[id] = s.catalog.puts[id] == nil
		s.flush()
		if i := s.IntN(3); i < len(s.nodes) { // which may not have heard of it
			s.disconnect(i)
		}
	} else if status.Code(err) != codes.Unavailable {
		s.t.Fatal(err)
	}
	s.flush()
}

// check checks that what can be read is all of what was published first.
func (s *sim) check() {
	for id, tried := range s.tried {
		p := s.catalog.puts[id]
		if p != nil && s.dropped[id] {
			s.t.Fatalf("%s was dropped, and is there again", id)
		}
		if p == nil || p.state != ready && p.state != retired {
			continue
		}
		if s.chosen[id] == nil {
			s.chosen[id] = tried
		}
		chosen := s.chosen[id]
		want, err := fingerprint(p.Columns, chosen)
		if err != nil {
			s.t.Fatal(err)
		}
		if before := s.published[id]; p.as.Fingerprint != want || before != "" && before != want {
			s.t.Fatalf("%s has fingerprint %s, want %s, before %s", id, p.as.Fingerprint, want, before)
		}
		s.published[id] = want
		d, err := s.catalog.Find(p.reference())
		if err != nil {
			continue
		}
		var rows, all int64
		for _, held := range d.Nodes {
			rows += held.NodeRows
		}
		for _, c := range chosen {
			all += c.Rows
		}
		if rows != all || d.Rows != all {
			s.t.Fatalf("%s can be read with %d rows, says %d, want %d", id, rows, d.Rows, all)
		}
		s.read++
	}
}

// TestRandomSchedules stops and disconnects nodes and heads at random, while clients put and publish: what can be read is always complete,
// and the same.
func TestRandomSchedules(t *testing.T) {
	read := 0
	for seed := range uint64(300) {
		s := &sim{
			Rand: rand.New(rand.NewPCG(seed, 1)), t: t, catalog: New(2), now: start, //nolint:gosec // repeatable
			made: map[string]map[int]protocol.PutPart{}, tried: map[string][]protocol.PutPart{}, chosen: map[string][]protocol.PutPart{}, published: map[string]string{}, dropped: map[string]bool{},
		}
		for i := range 2 {
			s.nodes = append(s.nodes, &simNode{puts: map[string]*simPut{}})
			s.connect(i)
		}
		var ids []string
		for range 1500 {
			s.now = s.now.Add(time.Second)
			i := s.IntN(2)
			switch roll := s.IntN(1000); {
			case roll < 10:
				id := fmt.Sprintf("put-%d", s.puts)
				s.puts++
				if _, err := s.catalog.Begin(spec(id, "a", protocol.PutReplace, 6, 2), s.now); err == nil {
					ids = append(ids, id)
					s.made[id] = map[int]protocol.PutPart{}
				}
				s.flush()
			case roll < 200 && len(ids) > 0:
				s.stage(ids[len(ids)-1])
			case roll < 260 && len(ids) > 0:
				s.publish(ids[s.IntN(len(ids))])
			case roll < 262 && len(ids) > 0:
				s.drop(ids[s.IntN(len(ids))])
			case roll < 265 && s.nodes[i].connected: // its connection breaks
				s.disconnect(i)
			case roll < 268: // it restarts
				s.disconnect(i)
				s.nodes[i].puts = map[string]*simPut{}
			case roll < 271: // the head restarts
				s.catalog, s.dropped = New(2), map[string]bool{}
				for _, n := range s.nodes {
					n.connected, n.in, n.out = false, nil, nil
				}
			case roll < 450 && !s.nodes[i].connected:
				s.connect(i)
			default:
				s.deliver(i)
			}
			s.check()
		}
		read += s.read
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("datasets could be read after %d steps", read)
	if read < 50_000 {
		t.Errorf("datasets could be read after %d steps only: the schedules test nothing", read)
	}
}
