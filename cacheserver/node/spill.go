// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/spill"
	"github.com/kubeflow/datacache/cacheserver/sweep"
)

const (
	// readingBytes is the memory for chunks that are read for a moment, at most a quarter of what there is.
	readingBytes = 64 << 20
	// estimated is how much of a sweep's memory its parts are planned to take.
	estimated = 0.9
)

// MemoryForRows is how much of free memory is for rows, where they are in spill files too.
func MemoryForRows(free int64) int64 { return free - min(readingBytes, free/4) }

// shareMemory divides the memory, once the rows are loaded, where they are in spill files too: as many chunks as make sense stay in memory, and the rest
// is for the sweep. It returns the bytes for chunks that stay.
func (a *assignment) shareMemory(n *Node) (pinned int64) {
	b, sharers := n.cfg.Budget, int64(max(1, n.cfg.Sharers))
	again := a.progress.Again() // set aside once for all nodes of the process
	free := min(b.Free(), (b.Limit()-b.Kept()-again)/sharers)
	again /= sharers
	reading := free + again - MemoryForRows(free+again)
	free -= max(reading-again, reading/2, min(2*a.rows.Chunks().Largest(), free/3*2))
	stored := a.rows.Stored().Bytes
	row := a.rows.Bytes() / max(1, a.rows.Len())
	d := sweep.Divide(free, stored, row, spill.PieceOf(row))
	if d.Stay < stored {
		a.sweep = sweep.New(a.rows, b, int64(estimated*float64(free-d.Stay)), reading/2, d.Apart)
	}
	return d.Stay
}

// startServing divides the memory and reads the chunks that stay, behind. It returns the bytes that the Go heap must leave to chunks that are not in
// memory yet.
func (a *assignment) startServing(ctx context.Context, n *Node) int64 {
	if a.rows == nil || !a.rows.IsStored() {
		return 0
	}
	most := a.shareMemory(n)
	a.pinned.Go(func() {
		n.cfg.Decoding.Idle(ctx) // what stays is lost to other nodes of the process that still load
		if err := a.rows.Chunks().Pin(ctx, most); err != nil && ctx.Err() == nil {
			n.cfg.Log.Warn("chunks that should stay in memory can't be read", "reason", err)
		}
	})
	return n.cfg.Budget.Free() + a.progress.Again()
}

// clearSpill removes the spill files of other plans.
func (a *assignment) clearSpill(n *Node) {
	if n.cfg.Spill == nil {
		return
	}
	if err := n.cfg.Spill.Keep(a.spec.Plan); err != nil {
		n.cfg.Log.Warn("spill files of another plan are left", "reason", err)
	}
}

// spilled says how much of the rows is where; nil if they are in memory only.
func (a *assignment) spilled(n *Node) *protocol.SpillStatus {
	rows := a.loaded()
	if n.cfg.Spill == nil || rows == nil {
		return nil
	}
	s := rows.Stored()
	return &protocol.SpillStatus{Dir: n.cfg.Spill.Path(), Bytes: n.cfg.Spill.Used(), Limit: n.cfg.Spill.Limit(), Resident: s.Resident, Pinned: s.Pinned}
}
