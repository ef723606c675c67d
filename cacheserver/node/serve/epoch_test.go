// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/fair"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/transport"
)

func TestCuts(t *testing.T) {
	const rows = 1_000_000
	all, half := assign.Bounds{0, rows}, assign.Bounds{rows / 2, rows}
	tests := []struct {
		name        string
		bounds      assign.Bounds
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
		{"no rows at all", assign.Bounds{}, 4, 1, 0, false, cut{16_384 * 4, endless}, "nothing to send"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := Lent{Ticket: protocol.Ticket{
				Bounds: tt.bounds,
				Epoch:  epoch.Epoch{Rows: rows, Shuffle: tt.shuffle, GlobalBatch: tt.batch, Tail: epoch.Keep},
				Share:  epoch.Share{World: tt.world, Workers: 1},
			}}
			if got := l.cuts(tt.mean, usualBytes, mostBytes); got != tt.want {
				t.Errorf("%+v, want %+v (%s)", got, tt.want, tt.description)
			}
		})
	}
}

func TestCutsOfMixtures(t *testing.T) {
	ticket := protocol.Ticket{
		Bounds: assign.Bounds{0, 100}, Epoch: epoch.Epoch{Rows: 1000, GlobalBatch: 128}, Share: epoch.Share{World: 1, Workers: 1},
		Mix: &epoch.Mix{Parts: []epoch.Part{{Rows: 100, Weights: []uint64{1}}}},
	}
	want := cut{endless, 510} // no step has contiguous rows, although this node has all rows of the part
	if got := (Lent{Ticket: ticket}).cuts(2056, usualBytes, mostBytes); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestBatchLength(t *testing.T) {
	for said, want := range map[int64]int64{0: usualBytes, 100_000: 100_000, 1: leastBytes, 2 << 20: 2 << 20, 1 << 40: longestBytes} {
		ctx := t.Context()
		if said > 0 {
			ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(protocol.BatchBytesHeader, strconv.FormatInt(said, 10)))
		}
		if got, err := batchLength(ctx); err != nil || got != want {
			t.Errorf("%d said: %d bytes, error %v: want %d", said, got, err, want)
		}
	}
}

// deaf is the stream of a client that does not read.
type deaf struct {
	grpc.ServerStream
	ctx context.Context
}

func (d deaf) Context() context.Context { return d.ctx }

func (d deaf) SendMsg(any) error { return nil }

// TestStreamsShareMemory opens streams until there is no memory left: each must get less than the ones before, and all memory must be
// released at the end.
func TestStreamsShareMemory(t *testing.T) {
	const limit, kept = 64 << 20, 16 << 20
	budget := offheap.NewBudget(limit).Keep(kept)
	if err := budget.Reserve(limit - kept); err != nil {
		t.Fatal(err)
	}
	n := New(Config{SendTimeout: time.Minute, Turns: fair.New(1), Config: role.Config{Budget: budget, Metrics: ops.NewMetrics(), Transport: transport.H2}})
	gone, cancel := context.WithCancel(t.Context())
	cancel() // a client that has gone does not wait for memory
	layout, err := rows.NewLayout(arrow.NewSchema(nil, nil))
	if err != nil {
		t.Fatal(err)
	}
	lent := Lent{Columns: layout.All(), Ticket: protocol.Ticket{Kind: protocol.Epoch, Job: "a"}}
	var most []int64
	var open func(*sender) error
	open = func(s *sender) error {
		if len(most) > 0 && s.most > most[len(most)-1] {
			t.Errorf("stream %d may use %d bytes for a message, the one before %d", len(most), s.most, most[len(most)-1])
		}
		most = append(most, s.most)
		return n.answer(lent, deaf{ctx: gone}, open)
	}
	if err = n.answer(lent, deaf{ctx: gone}, open); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v, want RESOURCE_EXHAUSTED", err)
	}
	t.Logf("%d streams, then: %v", len(most), err)
	if len(most) < 100 || most[0] != 128<<10 || most[len(most)-1] != leastBytes {
		t.Errorf("%d streams of %d to %d bytes a message", len(most), most[0], most[len(most)-1])
	}
	if used := budget.Clients().Used(); used != 0 || budget.Used() != limit-kept {
		t.Errorf("%d bytes are still reserved for clients, %d in all", used, budget.Used())
	}
}

// oneRun is a walk over the rows from next to end, which yields one run at a time.
type oneRun struct{ next, end uint64 }

func (o *oneRun) Next(runs []rows.Run, positions uint64) (n int, passed uint64) {
	if passed = min(positions, o.end-o.next); passed == 0 {
		return 0, 0
	}
	runs[0] = rows.Run{First: o.next, Rows: passed}
	o.next += passed
	return 1, passed
}

// TestPartsOfLongRuns checks that the size of a part is bounded also where a single run has more rows than a part may have.
func TestPartsOfLongRuns(t *testing.T) {
	for _, every := range []cut{{positions: endless, rows: 60}, {positions: 60, rows: endless}} {
		next := parts(&oneRun{end: 1000}, every, nil, every.positions)
		for sent, last := uint64(0), false; !last; {
			var runs []rows.Run
			if runs, _, last = next(100); total(runs) > 100+60 {
				t.Fatalf("%+v: a part of %d rows", every, total(runs))
			}
			if sent += uint64(total(runs)); last && sent != 1000 {
				t.Errorf("%+v: %d rows, want 1000", every, sent)
			}
		}
	}
}
