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
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// simNode is a data node as far as puts go. Messages in both directions arrive in order, some time later.
type simNode struct {
	connected bool
	puts      map[string]*simPut
	in        []peer.ToNode
	out       []peer.Staged
	copies    []peer.Copy // to be sent, of one part each
}

type simPut struct {
	spec  peer.Put
	parts []protocol.PutPart
	has   *peer.HeldRows

	chosen []protocol.PutPart
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

	// copied are parts that the node of a part has received, and whose copy is on its way: they are recorded when the head knows of that.
	copied []copied

	failed     map[string]bool
	published  map[string]string
	read       int
	forgotten  int
	replicated int               // datasets of which each part was on two nodes at the end
	dropping   map[string]string // references of datasets whose drop has not ended, by put
	dropped    map[string]bool   // datasets whose drop has ended
}

type copied struct {
	id   string
	part protocol.PutPart
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
		s.obey(i, m)
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

func (s *sim) obey(i int, m peer.ToNode) {
	n := s.nodes[i]
	switch {
	case m.Known != nil:
		s.known(i, *m.Known)
	case m.Copy != nil:
		for _, of := range m.Copy.Parts {
			n.copies = append(n.copies, peer.Copy{ID: m.Copy.ID, To: m.Copy.To, Parts: []protocol.PutPart{of}})
		}
	case m.Put != nil && n.puts[m.Put.ID] == nil:
		n.puts[m.Put.ID] = &simPut{spec: *m.Put}
	case m.Unput != nil:
		delete(n.puts, m.Unput.ID)
		n.out = append(n.out, peer.Staged{ID: m.Unput.ID, Freed: true})
	case m.Settle != nil && n.puts[m.Settle.ID] != nil && n.puts[m.Settle.ID].has != nil:
		p := n.puts[m.Settle.ID]
		p.has.Settled = true
		p.parts = slices.DeleteFunc(p.parts, func(o protocol.PutPart) bool { return !contains(p.chosen, o) })
	case m.Publish != nil:
		p := n.puts[m.Publish.ID]
		if p == nil {
			n.out = append(n.out, peer.Staged{ID: m.Publish.ID, Refusal: "restarted"})
			return
		}
		has := &peer.HeldRows{Publication: m.Publish.As, ColumnBytes: make([]int64, 1), Fits: make([]byte, 1)}
		for _, want := range m.Publish.Parts {
			if p.spec.Node(want.Part) != i {
				continue // a copy
			}
			if !contains(p.parts, want) {
				n.out = append(n.out, peer.Staged{ID: m.Publish.ID, Refusal: "lost"})
				return
			}
			has.NodeRows += want.Rows
		}
		p.has, p.chosen = has, m.Publish.Parts
		copied := *has
		n.out = append(n.out, peer.Staged{ID: m.Publish.ID, Has: &copied})
	}
}

// connect joins a node, which tells what it has.
func (s *sim) connect(i int) {
	n := s.nodes[i]
	n.connected, n.in, n.out, n.copies = true, nil, nil, nil
	s.catalog.Join(i)
	for id, p := range n.puts {
		of := p.spec
		m := peer.Staged{Put: &of, ID: id, Parts: slices.Clone(p.parts)}
		if p.has != nil {
			has := *p.has
			m.Has, m.Chosen = &has, p.chosen
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
	if to := p.spec.Copy(number); to >= 0 {
		if s.receive(to, id, of) {
			s.copied = append(s.copied, copied{id, of})
		}
		return
	}
	s.receive(s.index(n), id, of)
}

func (s *sim) index(n *simNode) int { return slices.Index(s.nodes, n) }

// receive has a node receive a part, if it is there.
func (s *sim) receive(i int, id string, of protocol.PutPart) bool {
	n := s.nodes[i]
	p := n.puts[id]
	if p == nil || !n.connected {
		return false
	}
	p.parts = slices.DeleteFunc(p.parts, func(o protocol.PutPart) bool { return o.Part == of.Part && o.Hash == of.Hash })
	p.parts = append(p.parts, of)
	n.out = append(n.out, peer.Staged{ID: id, Parts: []protocol.PutPart{of}})
	return true
}

// known has the nodes of parts record them, after the head knows of the copies on node i.
func (s *sim) known(i int, k peer.Known) {
	for _, of := range k.Parts {
		at := slices.Index(s.copied, copied{k.ID, of})
		if at >= 0 && s.copyOf(k.ID, of.Part) == i {
			s.copied = slices.Delete(s.copied, at, at+1)
			s.receive(of.Part*len(s.nodes)/simParts, k.ID, of)
		}
	}
}

func (s *sim) copyOf(id string, part int) int {
	for _, n := range s.nodes {
		if p := n.puts[id]; p != nil {
			return p.spec.Copy(part)
		}
	}
	return -1
}

// send sends a copy that a node was told to send, if the other one is there.
func (s *sim) send(i int) {
	n := s.nodes[i]
	if len(n.copies) == 0 {
		return
	}
	c := n.copies[0]
	n.copies = n.copies[1:]
	p := n.puts[c.ID]
	if p == nil || !contains(p.parts, c.Parts[0]) {
		n.out = append(n.out, peer.Staged{ID: c.ID, Absent: c.Parts})
		return
	}
	if !s.receive(c.To, c.ID, c.Parts[0]) {
		n.copies = append(n.copies, c)
	}
}

// lost reports whether no node has one of the chosen parts of a put.
func (s *sim) lost(p *put, chosen []protocol.PutPart) bool {
	return slices.ContainsFunc(chosen, func(of protocol.PutPart) bool {
		return !slices.ContainsFunc(s.nodes, func(n *simNode) bool { return n.puts[p.ID] != nil && contains(n.puts[p.ID].parts, of) })
	})
}

// publish publishes with the receipts of a put or, if it was tried before, with the same ones.
func (s *sim) publish(id string) {
	receipts := s.chosen[id]
	if receipts == nil {
		for number := range simParts {
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
		if s.catalog.puts[id] == nil {
			s.dropping[id] = p.reference()
		}
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
	for id, ref := range s.dropping {
		if Freeing(s.catalog, ref) == "" {
			s.dropped[id] = true
			delete(s.dropping, id)
		}
	}
	for id, tried := range s.tried {
		p := s.catalog.puts[id]
		if p != nil && p.state == failed && !s.failed[id] {
			s.failed[id] = true
			if chosen := s.chosen[id]; chosen != nil && p.Keep == protocol.KeepReplica && !s.lost(p, chosen) {
				if p.chosen == nil { // head and data nodes restarted at once, and nobody knows any more what was chosen
					s.forgotten++
					continue
				}
				s.t.Fatalf("%s has failed (%s), and all of its parts are there", id, p.failure)
			}
		}
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

const simParts = 6

// settleAll connects all nodes and delivers all messages: what can be read then is as it should be.
func (s *sim) settleAll() {
	for i, n := range s.nodes {
		if !n.connected {
			s.connect(i)
		}
	}
	for range 10_000 {
		i := s.IntN(len(s.nodes))
		s.deliver(i)
		s.send(i)
	}
	s.check()
	for id, chosen := range s.chosen {
		p := s.catalog.puts[id]
		if p == nil || p.state != ready || s.lost(p, chosen) {
			continue
		}
		if _, err := s.catalog.Find(p.reference()); err != nil {
			s.t.Fatalf("%s has all parts, all nodes are there, and it can't be read: %v", id, err)
		}
		if p.Keep != protocol.KeepReplica {
			continue
		}
		for _, of := range chosen {
			for _, node := range []int{p.Node(of.Part), p.Copy(of.Part)} {
				if held := s.nodes[node].puts[id]; held == nil || !contains(held.parts, of) {
					s.t.Fatalf("node %d does not have part %d of %s, which must be on two", node, of.Part, id)
				}
			}
		}
		s.replicated++
	}
}

// TestRandomSchedules stops and disconnects nodes and heads at random, while clients put and publish: what can be read is always complete,
// and the same. A dataset with copies fails only if a part is on no node any more.
func TestRandomSchedules(t *testing.T) {
	for keep, nodes := range map[string]int{protocol.KeepMemory: 2, protocol.KeepReplica: 3} {
		t.Run(keep, func(t *testing.T) { randomSchedules(t, keep, nodes) })
	}
}

func randomSchedules(t *testing.T, keep string, nodes int) {
	read, failures, replicated, forgotten := 0, 0, 0, 0
	seeds := seedtest.Seeds(t, seedtest.Cases[uint64](100, 300))
	for _, seed := range seeds {
		s := &sim{
			Rand: rand.New(rand.NewPCG(seed, 1)), t: t, catalog: New(nodes), now: start, //nolint:gosec // repeatable
			made: map[string]map[int]protocol.PutPart{}, tried: map[string][]protocol.PutPart{}, chosen: map[string][]protocol.PutPart{}, published: map[string]string{}, dropping: map[string]string{}, dropped: map[string]bool{}, failed: map[string]bool{},
		}
		for i := range nodes {
			s.nodes = append(s.nodes, &simNode{puts: map[string]*simPut{}})
			s.connect(i)
		}
		s.schedule(keep)
		s.settleAll()
		read, failures, replicated, forgotten = read+s.read, failures+len(s.failed), replicated+s.replicated, forgotten+s.forgotten
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("datasets could be read after %d steps, %d failed, %d with all parts there; at the end %d were on two nodes", read, failures, forgotten, replicated)
	if read < 30*len(seeds) || keep == protocol.KeepReplica && replicated < len(seeds)/8 {
		t.Errorf("datasets could be read after %d steps, and %d were on two nodes at the end: the schedules test nothing", read, replicated)
	}
	if forgotten > 3 { // the schedules have many more restarts at once than caches; how many of these are seen depends on the order of maps too
		t.Errorf("%d datasets failed with all parts there: what is published must be known after the head has restarted", forgotten)
	}
}

// schedule makes random steps.
func (s *sim) schedule(keep string) {
	var ids []string
	for range 1500 {
		s.now = s.now.Add(time.Second)
		i := s.IntN(len(s.nodes))
		switch roll := s.IntN(1000); {
		case roll < 10:
			id := fmt.Sprintf("put-%d", s.puts)
			s.puts++
			of := spec(id, "a", protocol.PutReplace, simParts, len(s.nodes))
			of.Keep = keep
			if _, err := s.catalog.Begin(of, s.now); err == nil {
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
			s.nodes[i].puts, s.nodes[i].copies = map[string]*simPut{}, nil
		case roll < 271: // the head restarts
			s.catalog = New(len(s.nodes))
			clear(s.dropping) // their clients got no answer, so the drops may or may not have happened
			for _, n := range s.nodes {
				n.connected, n.in, n.out = false, nil, nil
			}
		case roll < 450 && !s.nodes[i].connected:
			s.connect(i)
		case roll < 550:
			s.send(i)
		default:
			s.deliver(i)
		}
		s.check()
	}
}
