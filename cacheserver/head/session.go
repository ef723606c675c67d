// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"time"

	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

// member is one data node's place: its process and its connection. What it has of a dataset is that dataset's to know. The zero value is a
// node that never joined.
type member struct {
	session     *session // nil while the node is not connected
	address     string
	incarnation string
	restarts    int
	seen        time.Time
	gone        string // why it is not connected
}

// session is one connection of a node. closed says why it must end.
type session struct {
	index  int
	out    chan peer.ToNode
	closed chan struct{}
	reason error
	record []byte // pieces received; the receiving goroutine's
}

// close ends the session; only the first call counts. The caller holds the cluster's mu.
func (s *session) close(reason error) {
	select {
	case <-s.closed:
	default:
		s.reason = reason
		close(s.closed)
	}
}

// outboxSize is more than a session is ever told: an assignment and news of Ready for each of few plans, a recall,
// an abort.
const outboxSize = 16

// tell queues a message; a session whose outbox is full is dead already and will be closed.
func (s *session) tell(m peer.ToNode) {
	select {
	case s.out <- m:
	default:
	}
}
