// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"runtime/debug"
	"sync"

	"github.com/kubeflow/datacache/cacheserver/chunk"
	"github.com/kubeflow/datacache/cacheserver/iceberg"
	"github.com/kubeflow/datacache/cacheserver/metrics"
	"github.com/kubeflow/datacache/cacheserver/peer"
)

// part is a node's part of one plan: being loaded, loaded, or failed. It owns its arena until close.
type part struct {
	assign  peer.Assign
	workers int
	work    *Work
	budget  *chunk.Budget
	arena   *chunk.Arena
	metrics *metrics.Metrics
	cancel  context.CancelFunc
	ended   chan struct{} // closed when loading is over

	table *iceberg.Table // while loading

	// Set by loading before ended is closed, read only after.
	layout *chunk.Layout
	rows   *chunk.Rows
	err    error

	mu     sync.Mutex
	sealed []chunk.Sealed
	done   []peer.SplitDone // in the order of loading
	bytes  int64
}

// startPart begins to load what the head assigned. It ends early with ctx; see close.
func (n *Node) startPart(ctx context.Context, assign peer.Assign) *part {
	ctx, cancel := context.WithCancel(ctx)
	p := &part{
		assign: assign, workers: n.cfg.Workers, work: n.cfg.Work, budget: n.cfg.Budget, arena: chunk.NewArena(n.cfg.Budget), metrics: n.cfg.Metrics,
		cancel: cancel, ended: make(chan struct{}), sealed: make([]chunk.Sealed, len(assign.Splits)),
	}
	go func() {
		defer close(p.ended)
		p.err = p.run(ctx, n)
		p.table = nil        // its footers and deletes served their purpose
		n.cfg.Store.Idle()   // nor are its connections of use
		debug.FreeOSMemory() // what decoding needed would stay resident for minutes
	}()
	return p
}

func (p *part) run(ctx context.Context, n *Node) error {
	source := n.cfg.Source
	if source.CatalogURI == "" {
		source.Metadata = p.assign.Pin.MetadataLocation
	}
	table, err := iceberg.OpenPinned(ctx, n.cfg.Store, source, p.assign.Pin, p.assign.Selection)
	if err != nil {
		return err
	}
	p.table = table
	table.DecodeIn(&p.work.buffers)
	if p.layout, err = chunk.NewLayout(table.Schema()); err != nil {
		return err
	}
	if err := p.load(ctx); err != nil {
		return err
	}
	var chunks []*chunk.Chunk
	for _, s := range p.sealed {
		chunks = append(chunks, s.Chunks...)
	}
	p.rows, err = chunk.NewRows(p.layout, chunks)
	return err
}

// loaded gives the part's rows once they are all in memory, or nil.
func (p *part) loaded() *chunk.Rows {
	select {
	case <-p.ended:
		return p.rows
	default:
		return nil
	}
}

// failure is why loading ended without success, or nil.
func (p *part) failure() error {
	select {
	case <-p.ended:
		return p.err
	default:
		return nil
	}
}

// report gives the splits loaded since the first n, and the bytes in memory.
func (p *part) report(n int) ([]peer.SplitDone, int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done[n:len(p.done):len(p.done)], p.bytes
}

// held tells a head what the node works on.
func (p *part) held() *peer.Held {
	if p.failure() != nil {
		return nil
	}
	return &peer.Held{Plan: p.assign.Plan, Question: p.assign.Question, Pin: p.assign.Pin, Loaded: p.loaded() != nil}
}

// close stops loading, waits for it to end and lets the memory go as soon as the last stream has.
func (p *part) close() {
	p.cancel()
	<-p.ended
	if p.rows != nil {
		p.rows.Release()
	}
	p.arena.Release()
}
