// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/kubeflow/datacache/cacheserver/chunk"
	"github.com/kubeflow/datacache/cacheserver/metrics"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/peer"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
)

// part is a node's part of one plan: being loaded, loaded, or failed. It owns its arena until close.
type part struct {
	assign  peer.Assign
	workers int
	work    *Work
	store   *objstore.Store
	budget  *chunk.Budget
	arena   *chunk.Arena
	metrics *metrics.Metrics
	calls   *calls
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
	record []byte         // the head's, of the whole plan
	ready  bool           // the whole cache was Ready with the plan
	waits  map[int]string // why splits, by index in the part, are tried again; of the part itself at wholePart
}

// wholePart stands for what is not a split's.
const wholePart = -1

// startPart begins to load what the head assigned, once the part that had its place is freed. It ends early with
// ctx; see close.
func (n *Node) startPart(ctx context.Context, assign peer.Assign, old *part) *part {
	ctx, cancel := context.WithCancel(ctx)
	p := &part{
		assign: assign, workers: n.cfg.Workers, work: n.cfg.Work, budget: n.cfg.Budget, arena: chunk.NewArena(n.cfg.Budget), metrics: n.cfg.Metrics,
		store: n.cfg.Store, calls: newCalls(ctx), cancel: cancel, ended: make(chan struct{}), sealed: make([]chunk.Sealed, len(assign.Splits)),
		record: assign.Record, ready: assign.Ready, waits: map[int]string{},
	}
	go func() {
		defer close(p.ended)
		if old != nil {
			p.replace(ctx, old)
		}
		p.err = p.run(ctx, n)
		p.table = nil        // its footers and deletes served their purpose
		n.cfg.Store.Idle()   // nor are its connections of use
		debug.FreeOSMemory() // what decoding needed would stay resident for minutes
		n.limitHeap()
	}()
	return p
}

// streamsEnd is how long the streams of a part that is replaced may take to end. What they hold after that may leave
// no room for the new part.
const streamsEnd = 30 * time.Second

// replace frees old: it ends the streams, which would keep its memory as long as their clients like.
func (p *part) replace(ctx context.Context, old *part) {
	idle := old.calls.endAll()
	old.close()
	p.note(wholePart, fmt.Sprintf("waiting for %d streams of the former plan to end", old.calls.number()))
	defer p.note(wholePart, "")
	select {
	case <-idle:
	case <-ctx.Done():
	case <-time.After(streamsEnd):
	}
}

func (p *part) run(ctx context.Context, n *Node) error {
	source := n.cfg.Source
	if source.CatalogURI == "" {
		source.Metadata = p.assign.Pin.MetadataLocation
	}
	err := p.retry(ctx, wholePart, func() (err error) {
		p.table, err = iceberg.OpenPinned(ctx, n.cfg.Store, source, p.assign.Pin, p.assign.Selection)
		return err
	})
	if err != nil {
		return err
	}
	p.table.DecodeIn(p.work.buffers)
	if p.layout, err = chunk.NewLayout(p.table.Schema()); err != nil {
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
	_, ready := p.recordKept()
	return &peer.Held{Plan: p.assign.Plan, Request: p.assign.Request, Ready: ready}
}

// keepRecord keeps the head's record of the plan, in place of an earlier one.
func (p *part) keepRecord(record []byte, ready bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.record, p.ready = record, ready
}

func (p *part) recordKept() (record []byte, ready bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.record, p.ready
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
