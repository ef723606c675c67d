// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/kubeflow/datacache/cacheserver/order"
	"github.com/kubeflow/datacache/cacheserver/plan"
	"github.com/kubeflow/datacache/cacheserver/wire"
)

func TestBatchPositions(t *testing.T) {
	const rows = 1_000_000
	all := plan.Bounds{0, rows}
	tests := []struct {
		name        string
		bounds      plan.Bounds
		batch       uint64
		world       uint64
		mean        int64
		positions   int
		wholeSteps  bool
		description string
	}{
		{"many steps fit", all, 128, 1, 2056, 3 * 128, true, "510 rows are 1 MiB"},
		{"one step fits", all, 1600, 1, 2056, 1600, true, "just over 3 MiB, below the most"},
		{"one long step", all, 128, 1, 20_000, 128, true, "2.5 MB"},
		{"one longer step", all, 128, 1, 30_000, 128, true, "3.8 MB, still below the most"},
		{"a rank's share of a step", all, 1024, 8, 20_000, 128, true, "the same 2.5 MB"},
		{"a step is too long", all, 4096, 1, 20_000, 52, false, "80 MB"},
		{"narrow rows", all, 1000, 1, 1, 65_000, true, "bounded by rows"},
		{"a step of too many rows", all, 100_000, 1, 1, mostRows, false, "bounded by rows"},
		{"half the rows are here", plan.Bounds{rows / 2, rows}, 128, 1, 2056, 7 * 128, true, "1 MiB of this node's rows"},
		{"more ranks than rows of a step", all, 3, 8, 1 << 30, 1, false, "rank 0 has none of them"},
		{"huge rows", all, 4, 1, 1 << 30, 1, false, "one at a time"},
		{"no rows at all", plan.Bounds{}, 4, 1, 0, 65_536 * rows, true, "nothing to send"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := serving{ticket: wire.Ticket{
				Bounds: tt.bounds,
				Epoch:  order.Epoch{Rows: rows, GlobalBatch: tt.batch, Tail: order.Keep},
				Share:  order.Share{World: tt.world, Workers: 1},
			}}
			got := l.batchPositions(tt.mean)
			if got != tt.positions {
				t.Errorf("%d positions, want %d (%s)", got, tt.positions, tt.description)
			}
			if share := max(int(tt.batch/tt.world), 1); tt.wholeSteps != (got%share == 0) && share > 1 {
				t.Errorf("%d positions of steps of %d", got, share)
			}
		})
	}
}
