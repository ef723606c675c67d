// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"

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

// datasetLocked returns the rows of a published put, nil if the node has none.
func (n *Node) datasetLocked(id string) *dataset {
	held := n.stage.Find(id)
	if held == nil {
		return nil
	}
	d := n.datasets[id]
	if d == nil || d.Held != held {
		if d != nil {
			d.close()
		}
		ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // ends with drop
		d = &dataset{
			Held: held, calls: serve.NewCalls(ctx), stopped: ctx, cancel: cancel,
			indexes: index.New(ctx, n.cfg.Budget, n.cfg.FilterMemory, n.cfg.Work, n.cfg.Metrics),
		}
		n.datasets[id] = d
	}
	return d
}

// drop ends the use of a dataset's rows; running streams keep them until they end.
func (n *Node) drop(id string) {
	n.mu.Lock()
	d := n.datasets[id]
	delete(n.datasets, id)
	n.mu.Unlock()
	if d != nil {
		d.close()
	}
}

func (d *dataset) close() {
	d.cancel()
	d.indexes.Close()
}

// obeyPut carries out a message of the head about puts.
func (n *Node) obeyPut(m peer.ToNode) {
	switch {
	case m.Put != nil:
		n.stage.Open(*m.Put)
	case m.Publish != nil:
		n.stage.Publish(*m.Publish)
	case m.Settle != nil:
		n.stage.Settle(m.Settle.ID)
	case m.Unput != nil:
		n.stage.Unput(m.Unput.ID)
	case m.Known != nil:
		n.stage.Known(*m.Known)
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
