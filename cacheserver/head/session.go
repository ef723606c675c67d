// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"time"

	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

// member is the process and the connection of one data node index. The zero value is a node that never joined. What the node has of a
// dataset is recorded in the dataset.
type member struct {
	session     *session // nil while the node is not connected
	address     string
	incarnation string
	restarts    int
	seen        time.Time
	gone        string // why it is not connected
	vitals      peer.Vitals
}

// session is one connection of a node. closed has the reason why it must end.
type session struct {
	index  int
	out    chan peer.ToNode
	closed chan struct{}
	reason error
	record []byte // the parts received so far; used only by the receiving goroutine
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

// outboxSize exceeds the number of messages that a running node lets wait: an assignment and a Ready for each of few plans, a Recall, an
// Abort, and requests for indexes.
const outboxSize = 16 + mostIndexing

// tell queues a message. A session whose outbox is full has a dead connection, and will be closed.
func (s *session) tell(m peer.ToNode) {
	select {
	case s.out <- m:
	default:
	}
}
