// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strconv"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/kubeflow/datacache/cacheserver/chunk"
	"github.com/kubeflow/datacache/cacheserver/order"
	"github.com/kubeflow/datacache/cacheserver/plan"
	"github.com/kubeflow/datacache/cacheserver/wire"
)

func TestCuts(t *testing.T) {
	const rows = 1_000_000
	all, half := plan.Bounds{0, rows}, plan.Bounds{rows / 2, rows}
	tests := []struct {
		name        string
		bounds      plan.Bounds
		batch       uint64
		world       uint64
		mean        int64
		shuffle     bool
		want        cut
		description string
	}{
		{"many steps fit", all, 128, 1, 2056, false, cut{3 * 128, endless}, "510 rows are 1 MiB"},
		{"shuffled, all rows are here", all, 128, 1, 2056, true, cut{3 * 128, endless}, "as in order"},
		{"shuffled, half of them", half, 128, 1, 2056, true, cut{endless, 510}, "1 MiB, which no step ends"},
		{"one step fits", all, 1600, 1, 2056, false, cut{1600, endless}, "just over 3 MiB, below the most"},
		{"one long step", all, 128, 1, 20_000, false, cut{128, endless}, "2.5 MB"},
		{"one longer step", all, 128, 1, 30_000, false, cut{128, endless}, "3.8 MB, still below the most"},
		{"a rank's share of a step", all, 1024, 8, 20_000, false, cut{128, endless}, "the same 2.5 MB"},
		{"a step is too long", all, 4096, 1, 20_000, false, cut{endless, 52}, "80 MB"},
		{"narrow rows", all, 1000, 1, 1, false, cut{65_000, endless}, "bounded by rows"},
		{"a step of too many rows", all, 100_000, 1, 1, false, cut{endless, mostRows}, "bounded by rows"},
		{"half the rows are here", half, 128, 1, 2056, false, cut{3 * 128, endless}, "in order they lie together"},
		{"more ranks than rows of a step", all, 3, 8, 1 << 30, false, cut{endless, 1}, "rank 0 has none of them"},
		{"huge rows", all, 4, 1, 1 << 30, false, cut{endless, 1}, "one at a time"},
		{"no rows at all", plan.Bounds{}, 4, 1, 0, false, cut{16_384 * 4, endless}, "nothing to send"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := serving{ticket: wire.Ticket{
				Bounds: tt.bounds,
				Epoch:  order.Epoch{Rows: rows, Shuffle: tt.shuffle, GlobalBatch: tt.batch, Tail: order.Keep},
				Share:  order.Share{World: tt.world, Workers: 1},
			}}
			if got := l.cuts(tt.mean, usualBytes); got != tt.want {
				t.Errorf("%+v, want %+v (%s)", got, tt.want, tt.description)
			}
		})
	}
}

func TestBatchLength(t *testing.T) {
	const limit = 10 << 20
	tests := []struct {
		name     string
		said     int64 // 0: nothing
		used     int64
		want     int64
		reserves int64
	}{
		{"nothing said", 0, 0, usualBytes, 0},
		{"shorter", 100_000, 0, 100_000, 0},
		{"too short", 1, 0, leastBytes, 0},
		{"longer", 2 << 20, 0, 2 << 20, 2 << 20},
		{"too long", 1 << 40, 0, longestBytes, 2 * (longestBytes - usualBytes)},
		{"just fits", 2 << 20, limit - 2<<20, 2 << 20, 2 << 20},
		{"no room", 2 << 20, limit - 2<<20 + 1, usualBytes, 0},
		{"no room at all", 100_000, limit, 100_000, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			budget := chunk.NewBudget(limit)
			if err := budget.Reserve(tt.used); err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			if tt.said > 0 {
				ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(wire.BatchBytesHeader, strconv.FormatInt(tt.said, 10)))
			}
			got, release, err := batchLength(ctx, budget)
			if err != nil {
				t.Fatal(err)
			}
			if reserved := budget.Used() - tt.used; got != tt.want || reserved != tt.reserves {
				t.Errorf("%d bytes, reserved %d: want %d, %d", got, reserved, tt.want, tt.reserves)
			}
			release()
			if budget.Used() != tt.used {
				t.Errorf("%d bytes used after release, want %d", budget.Used(), tt.used)
			}
		})
	}
}
