// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/source"
)

// part is a node's part of one plan: being loaded, loaded, or failed. It owns its arena until close.
type part struct {
	assign  peer.Assign
	workers int
	limiter *DecodeLimiter
	store   *objstore.Store
	budget  *rows.Budget
	arena   *rows.Arena
	metrics *ops.Metrics
	calls   *calls
	cancel  context.CancelFunc
	ended   chan struct{} // closed when loading is over

	source  source.Source
	dataset source.Dataset // while loading
	splits  []source.Split

	// Set by loading before ended is closed, read only after.
	layout *rows.Layout
	rows   *rows.Rows
	err    error

	mu     sync.Mutex
	sealed []rows.Sealed
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
		assign: assign, workers: n.cfg.Workers, limiter: n.cfg.Decoding, budget: n.cfg.Budget, arena: rows.NewArena(n.cfg.Budget), metrics: n.cfg.Metrics,
		source: n.cfg.Source, store: n.cfg.Store, calls: newCalls(ctx), cancel: cancel, ended: make(chan struct{}), sealed: make([]rows.Sealed, len(assign.Splits)),
		record: assign.Record, ready: assign.Ready, waits: map[int]string{},
	}
	go func() {
		defer close(p.ended)
		if old != nil {
			p.replace(ctx, old)
		}
		p.err = p.run(ctx)
		p.dataset = nil      // its footers and deletes served their purpose
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

func (p *part) run(ctx context.Context) error {
	for _, text := range p.assign.Splits {
		split, err := p.source.Split(text)
		if err != nil {
			return err
		}
		p.splits = append(p.splits, split)
	}
	version := source.Version{Pin: p.assign.Pin, Selection: p.assign.Selection}
	err := p.retry(ctx, wholePart, func() (err error) {
		p.dataset, err = p.source.Open(ctx, version, p.limiter.buffers)
		return err
	})
	if err != nil {
		return err
	}
	if p.layout, err = rows.NewLayout(p.dataset.Schema()); err != nil {
		return err
	}
	if err := p.load(ctx); err != nil {
		return err
	}
	var chunks []*rows.Chunk
	for _, s := range p.sealed {
		chunks = append(chunks, s.Chunks...)
	}
	p.rows, err = rows.NewRows(p.layout, chunks)
	return err
}

// loaded gives the part's rows once they are all in memory, or nil.
func (p *part) loaded() *rows.Rows {
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
