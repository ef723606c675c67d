// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"sync"

	"github.com/kubeflow/datacache/cacheserver/node/index"
	"github.com/kubeflow/datacache/cacheserver/node/serve"
	"github.com/kubeflow/datacache/cacheserver/node/stage"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

// dataset is the node's rows of a dataset that was put, with what their readers need.
type dataset struct {
	*stage.Held
	calls   *serve.Calls
	indexes *index.Set
	stopped context.Context // of making indexes; canceled when the rows are dropped
	cancel  context.CancelFunc
}

// datasets are the datasets that were put. They are safe for concurrent use.
type datasets struct {
	cfg   *Config
	stage *stage.Stage

	mu   sync.Mutex
	used map[string]*dataset // those that were found, by id
}

// find returns the rows of a published put, nil if the node has none.
func (s *datasets) find(id string) *dataset {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.stage.Find(id)
	if held == nil {
		return nil
	}
	d := s.used[id]
	if d == nil || d.Held != held {
		if d != nil {
			d.close()
		}
		ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // ends with drop
		d = &dataset{
			Held: held, calls: serve.NewCalls(ctx), stopped: ctx, cancel: cancel,
			indexes: index.New(ctx, s.cfg.Budget, s.cfg.FilterMemory, s.cfg.Work, s.cfg.Metrics),
		}
		s.used[id] = d
	}
	return d
}

// drop ends the use of a dataset's rows; running streams keep them until they end.
func (s *datasets) drop(id string) {
	s.mu.Lock()
	d := s.used[id]
	delete(s.used, id)
	s.mu.Unlock()
	if d != nil {
		d.close()
	}
}

func (d *dataset) close() {
	d.cancel()
	d.indexes.Close()
}

// obey carries out a message of the head about puts.
func (s *datasets) obey(m peer.ToNode) {
	switch {
	case m.Put != nil:
		s.stage.Open(*m.Put)
	case m.Publish != nil:
		s.stage.Publish(*m.Publish)
	case m.Settle != nil:
		s.stage.Settle(m.Settle.ID)
	case m.Unput != nil:
		s.stage.Unput(m.Unput.ID)
	case m.Copy != nil:
		s.stage.Copy(*m.Copy)
	case m.Known != nil:
		s.stage.Known(*m.Known)
	}
}

// sendAll sends reports to the head.
func sendAll(stream peer.NodeStream, reports []peer.Staged) error {
	for i := range reports {
		if err := stream.Send(peer.ToHead{Staged: &reports[i]}); err != nil {
			return err
		}
	}
	return nil
}
