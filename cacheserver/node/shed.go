// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/transport"
)

const (
	// shedAfter is how long a client must have read nothing before its stream may be ended for another one's sake.
	shedAfter = 5 * time.Second
	// memoryWait is how long a stream waits for memory before it is refused, and memoryPoll how often it looks.
	memoryWait, memoryPoll = shedAfter + time.Second, 50 * time.Millisecond
	// maxWaiting is how many streams may wait at a time: they take memory, too.
	maxWaiting = 128
)

// senders are the open streams of a node. The zero value is ready.
type senders struct {
	mu   sync.Mutex
	open map[*sender]struct{}
}

func (a *senders) add(s *sender) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open == nil {
		a.open = map[*sender]struct{}{}
	}
	a.open[s] = struct{}{}
}

func (a *senders) remove(s *sender) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, s)
}

// shed ends the stream whose client has read nothing for longest, if that is long enough.
func (a *senders) shed(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var idle *sender
	since := now.Add(-shedAfter).UnixNano()
	for s := range a.open {
		if w := s.waiting.Load(); w != 0 && w < since && !s.shed.Load() {
			idle, since = s, w
		}
	}
	if idle != nil {
		idle.shed.Store(true)
		transport.Cancel(idle.stream.Context())
	}
}

// transportMemory is where connections and requests are reserved. It does not wait, but when there is no memory, an idle stream ends.
type transportMemory struct{ node *Node }

// Reserve implements h2.Memory.
func (m transportMemory) Reserve(n int64) error {
	err := m.node.cfg.Budget.Clients().Reserve(n)
	if err != nil {
		m.node.senders.shed(time.Now())
	}
	return err
}

// Release implements h2.Memory.
func (m transportMemory) Release(n int64) { m.node.cfg.Budget.Clients().Release(n) }

// withMemory calls reserve again while there is too little memory, and makes room by ending streams that nobody reads; unless there would
// be too little without any streams, too.
func (n *Node) withMemory(ctx context.Context, reserve func() error) error {
	if waiting := n.waiting.Add(1); waiting > maxWaiting {
		n.waiting.Add(-1)
		return reserve()
	}
	defer n.waiting.Add(-1)
	for end := time.Now().Add(memoryWait); ; {
		err := reserve()
		var full *rows.ExhaustedError
		if !errors.As(err, &full) || full.Need > n.cfg.Budget.Heap()/4 || time.Now().After(end) {
			return err
		}
		n.senders.shed(time.Now())
		select {
		case <-ctx.Done():
			return err
		case <-time.After(memoryPoll):
		}
	}
}
