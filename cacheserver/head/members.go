// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/head/packing"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

// member is the process and the connection of one data node index. The zero value is a node that never joined. What the node has of a
// dataset is recorded in the dataset.
type member struct {
	session     *session // nil while the node is not connected
	address     string
	machine     string // that it runs on, for messages; may be empty
	disk        bool   // it stores what clients put on a disk
	incarnation string
	restarts    int
	seen        time.Time
	gone        string    // why it is not connected
	goneSince   time.Time // and since when
	vitals      peer.Vitals
}

// members are the data nodes by index. The cluster's mu protects them.
type members []member

// names lists the indices of the nodes that a condition holds for.
func (m members) names(holds func(i int) bool) (names []string) {
	for i := range m {
		if holds(i) {
			names = append(names, strconv.Itoa(i))
		}
	}
	return names
}

// missing lists the nodes that never joined.
func (m members) missing() []string {
	return m.names(func(i int) bool { return m[i].incarnation == "" })
}

// tell sends a message to the connected nodes that a condition holds for.
func (m members) tell(message peer.ToNode, holds func(i int) bool) {
	for i := range m {
		if s := m[i].session; s != nil && holds(i) {
			s.tell(message)
		}
	}
}

// join replaces the process of a node's index, if there is one, by the one that says hello.
func (m *member) join(hello peer.Hello, now time.Time) *session {
	if m.session != nil {
		if m.incarnation != hello.Incarnation {
			reason := fmt.Sprintf("another process, at %s, joined as data node %d", hello.Address, hello.Index)
			m.session.tell(peer.ToNode{Abort: &peer.Abort{Reason: reason, Final: true}})
		}
		m.session.close(status.Errorf(codes.Aborted, "data node %d joined again", hello.Index))
	}
	restarts := m.restarts
	if m.incarnation != "" && m.incarnation != hello.Incarnation {
		restarts++
	}
	s := &session{index: hello.Index, held: hello.Held, pieces: make(chan peer.Piece), planned: make(chan peer.Planned, mostGivenUp), out: make(chan peer.ToNode, outboxSize), closed: make(chan struct{}), measured: map[int64]chan<- peer.Measured{}}
	*m = member{session: s, address: hello.Address, machine: hello.Machine, disk: hello.Disk, incarnation: hello.Incarnation, restarts: restarts, seen: now}
	return s
}

// lose records that a node is not connected any more, since when and why.
func (m *member) lose(reason string, since time.Time) {
	m.session, m.gone, m.goneSince, m.vitals = nil, reason, since, peer.Vitals{}
}

// place is where a node is: its address and, if known, its machine.
func place(address, machine string) string {
	if machine == "" {
		return address
	}
	return address + " on machine " + machine
}

// loss says since when and why the node is not connected.
func (m *member) loss() string {
	return fmt.Sprintf("since %s: %s", m.goneSince.UTC().Format(time.RFC3339), m.gone)
}

// session is one connection of a node. closed has the reason why it must end.
type session struct {
	index  int
	out    chan peer.ToNode
	closed chan struct{}
	reason error
	held   *peer.Held      // what the node held when it joined; nil after it was assigned a plan
	pieces chan peer.Piece // of what was recalled, from the receiving goroutine to the gatherer

	plans   int64             // number of Plan messages sent to the node; protected by the cluster's mu
	planned chan peer.Planned // answers to them; full: nobody waits for one

	lengths  int64                          // number of Lengths messages sent to the node; protected by the cluster's mu
	measured map[int64]chan<- peer.Measured // who waits for the answers to them; likewise
}

// mostGivenUp is the number of plans that may be given up before their answers come.
const mostGivenUp = 16

// close ends the session; only the first call counts. The caller holds the cluster's mu.
func (s *session) close(reason error) {
	select {
	case <-s.closed:
	default:
		s.reason = reason
		close(s.closed)
	}
}

// mostFilters is the number of filters that a head remembers. The nodes' indexes are bounded by their memory.
const mostFilters = 256

// outboxSize exceeds the number of messages that a running node lets wait: for each of few plans an assignment, a Ready and parts to keep, a
// Recall, an Abort, requests for indexes and their cancellations, and for lengths.
const outboxSize = 16 + 2*mostFilters + packing.MostPlanned

// tell queues a message. A session whose outbox is full has a dead connection, and will be closed.
func (s *session) tell(m peer.ToNode) {
	select {
	case s.out <- m:
	default:
	}
}
