// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/protobuf/proto"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// slowHolders returns the nodes that hold rows of a ticket, by looking at each of its runs, and the number of rows.
func slowHolders(t *testing.T, ticket protocol.Ticket, bounds []assign.Bounds) (nodes []int, rows uint64) {
	t.Helper()
	cursor, err := ticket.Cursor()
	if err != nil {
		t.Fatal(err)
	}
	holds := make([]bool, len(bounds))
	var runs [64]epoch.Run
	for n, passed := cursor.Next(runs[:], 64); passed > 0; n, passed = cursor.Next(runs[:], 64) {
		for _, r := range runs[:n] {
			rows += r.Rows
			for i, b := range bounds {
				if b.Len() > 0 && int64(r.First) < b[1] && int64(r.First+r.Rows) > b[0] {
					holds[i] = true
				}
			}
		}
	}
	for i := range bounds {
		if holds[i] {
			nodes = append(nodes, i)
		}
	}
	return nodes, rows
}

// TestHoldersEqualPlainReference compares the nodes of random tickets, all with few runs, with those found by looking at every row.
func TestHoldersEqualPlainReference(t *testing.T) {
	r := seedtest.New(t)
	for range 3000 {
		counts := make([]int64, 1+r.IntN(30))
		for i := range counts {
			counts[i] = max(r.Int64N(60)-20, 0)
		}
		bounds := assign.BoundsOf(counts)
		filtered := uint64(bounds[len(bounds)-1][1])
		var ticket protocol.Ticket
		rows := filtered
		if r.IntN(2) == 0 {
			of := 1 + r.Uint64N(9)
			from := r.Uint64N(of)
			ticket.Split, ticket.Filtered = &epoch.Split{Seed: r.Uint64(), Of: of, From: from, To: from + r.Uint64N(of-from+1), Shuffle: r.IntN(2) == 0}, int64(filtered)
			first, end := ticket.Split.Bounds(filtered)
			rows = end - first
		}
		e := epoch.Epoch{Rows: rows, Seed: r.Uint64(), Shuffle: r.IntN(2) == 0, Clump: 1 + r.Uint64N(9), Window: r.Uint64N(5), GlobalBatch: 1 + r.Uint64N(2*rows+1), Tail: []epoch.Tail{epoch.Drop, epoch.Pad, epoch.Keep}[r.IntN(3)]}
		if e.Shuffle && r.IntN(3) == 0 {
			e.Lanes, e.GlobalBatch = true, 64+r.Uint64N(64)
		}
		s := epoch.Share{World: 1 + r.Uint64N(9), Workers: 1 + r.Uint64N(3), StartStep: r.Uint64N(3)}
		s.Rank, s.Worker = r.Uint64N(s.World), r.Uint64N(s.Workers)
		ticket.Kind, ticket.Epoch, ticket.Share = protocol.Epoch, e, s
		if r.IntN(4) == 0 {
			lo := r.Int64N(int64(rows) + 1)
			ticket = protocol.Ticket{Kind: protocol.Shard, Rows: assign.Bounds{lo, lo + r.Int64N(int64(rows)-lo+1)}, Split: ticket.Split, Filtered: ticket.Filtered}
		}
		want, _ := slowHolders(t, ticket, bounds)
		got, err := holders(ticket, bounds)
		if err != nil || !slices.Equal(want, got) {
			t.Fatalf("%+v of %v: nodes %v, want %v (%v)", ticket, bounds, got, want, err)
		}
	}
}

// TestLongSharesHaveAllNodes checks that a share with too many runs to examine lists every node of its selection.
func TestLongSharesHaveAllNodes(t *testing.T) {
	bounds := assign.BoundsOf(slices.Repeat([]int64{1000, 0}, 500))
	for _, split := range []*epoch.Split{nil, {Of: 10, From: 2, To: 5}, {Of: 10, From: 2, To: 5, Shuffle: true}} {
		e := epoch.Epoch{Rows: 500_000, Shuffle: true, Clump: 1, GlobalBatch: 100, Tail: epoch.Drop}
		if split != nil {
			e.Rows = 150_000
		}
		ticket := protocol.Ticket{Kind: protocol.Epoch, Epoch: e, Share: epoch.Share{Rank: 1, World: 3, Workers: 1}, Split: split, Filtered: 500_000}
		want, _ := slowHolders(t, ticket, bounds)
		if got, err := holders(ticket, bounds); err != nil || !slices.Equal(want, got) {
			t.Errorf("split %+v: %d nodes, want %d (%v)", split, len(got), len(want), err)
		}
	}
}

// TestLanesOfManyRanks counts the connections of every tenth of 10,000 ranks of 1,000 data nodes in order version 2: docs/scale.md has at most
// 340,000 of all.
func TestLanesOfManyRanks(t *testing.T) {
	bounds := assign.BoundsOf(slices.Repeat([]int64{50_000_000}, 1000))
	e := epoch.Epoch{Rows: 50_000_000_000, Seed: 7, Shuffle: true, Clump: 1, GlobalBatch: 20_000, Tail: epoch.Drop, Lanes: true}
	connections, most := 0, 0
	for tenth := range uint64(1000) {
		nodes, err := holders(protocol.Ticket{Kind: protocol.Epoch, Epoch: e, Share: epoch.Share{Rank: 10*tenth + tenth%10, World: 10_000, Workers: 1}}, bounds)
		if err != nil {
			t.Fatal(err)
		}
		connections, most = connections+len(nodes), max(most, len(nodes))
	}
	t.Logf("%d connections, of a rank at most %d", connections, most)
	if connections > 34_000 || most > 3*33 {
		t.Errorf("%d connections, of a rank %d; want at most 34,000 and %d", connections, most, 3*33)
	}
}

// wideView is the view of a cache of equal nodes with 5*10^7 rows each.
func wideView(t testing.TB, nodes int) *view {
	t.Helper()
	v := goldenView([]string{"tokens", "doc"}, assign.BoundsOf(slices.Repeat([]int64{50_000_000}, nodes)))
	for i := range v.nodes {
		v.nodes[i].address = fmt.Sprintf("train-cache-0-%d.train-cache.team-vision.svc.cluster.local:50051", i+1)
		v.nodes[i].incarnation = fmt.Sprintf("%016x", i)
	}
	counts := make([]int64, nodes)
	for i := range counts {
		counts[i] = v.nodes[i].rows
	}
	var err error
	if v.places, err = newPlaces(counts); err != nil {
		t.Fatal(err)
	}
	return v
}

// answerOf makes the whole response to a command.
func answerOf(t testing.TB, v *view, seal protocol.Sealer, command string) *flight.FlightInfo {
	t.Helper()
	d := &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte(command)}
	r, err := protocol.ParseDescriptor(d)
	if err != nil {
		t.Fatal(err)
	}
	if r.Split != nil {
		narrowed := *v
		first, end := r.Split.Bounds(uint64(v.filtered))
		narrowed.rows, narrowed.selection = int64(end-first), &selection{Selection: protocol.Selection{Split: r.Split}}
		v = &narrowed
	}
	a, err := v.answer(r)
	if err != nil {
		t.Fatal(err)
	}
	info, err := a.info(d, seal, "grpc", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// BenchmarkAnswers makes responses of every kind at 10, 100 and 1,000 data nodes, with about as many endpoints as a rank of 10,000 has in
// lanes, 33, and with all. It prints what a response costs, its endpoints and bytes.
func BenchmarkAnswers(b *testing.B) {
	seal := protocol.NewSealer(make([]byte, 32))
	for _, nodes := range []int{10, 100, 1000} {
		v := wideView(b, nodes)
		share := max(nodes/33, 1)
		rows := v.rows
		from := fmt.Sprintf(`"start_step":%d`, rows/20_000*int64(share-1)/int64(share))
		for _, tt := range []struct{ name, command string }{
			{"shard", fmt.Sprintf(`{"v":1,"kind":"shard","index":0,"total":%d}`, share)},
			{"in order", `{"v":1,"kind":"epoch","seed":7,"epoch":0,"shuffle":false,"global_batch":20000,"tail":"drop","rank":17,"world":10000,` + from + `}`},
			{"in order, all nodes", `{"v":1,"kind":"epoch","seed":7,"epoch":0,"shuffle":false,"global_batch":20000,"tail":"drop","rank":17,"world":10000}`},
			{"shuffled, 33 rows", `{"v":1,"kind":"epoch","seed":7,"epoch":0,"shuffle":true,"global_batch":330000,"tail":"drop","rank":17,"world":10000,"start_step":` + fmt.Sprint(rows/330_000-1) + `}`},
			{"shuffled part", fmt.Sprintf(`{"v":1,"kind":"epoch","seed":7,"epoch":0,"shuffle":true,"global_batch":20000,"tail":"drop","rank":17,"world":10000,"split":{"seed":1,"of":%d,"from":0,"to":1,"shuffle":false}}`, share)},
			{"shuffled, all nodes", `{"v":1,"kind":"epoch","seed":7,"epoch":0,"shuffle":true,"global_batch":20000,"tail":"drop","rank":17,"world":10000}`},
			{"in lanes", `{"v":1,"kind":"epoch","seed":7,"epoch":0,"shuffle":true,"order":2,"global_batch":20000,"tail":"drop","rank":17,"world":10000}`},
			{"mix, 33 rows", fmt.Sprintf(`{"v":1,"kind":"mix","seed":7,"epoch":0,"shuffle":true,"global_batch":470000,"tail":"drop","rank":17,"world":10000,"part":0,"parts":[{"rows":%d,"weights":[7000]},{"rows":1000,"weights":[3000]}],"phases":[],"unit":"row","length":470000}`, rows)},
			{"mix in order", fmt.Sprintf(`{"v":1,"kind":"mix","seed":7,"epoch":0,"shuffle":false,"global_batch":20000,"tail":"drop","rank":17,"world":10000,"part":0,"parts":[{"rows":%d,"weights":[7000]},{"rows":1000,"weights":[3000]}],"phases":[],"unit":"row","length":%d}`, rows, rows)},
			{"mix 1:1, 33 rows", fmt.Sprintf(`{"v":1,"kind":"mix","seed":7,"epoch":0,"shuffle":true,"global_batch":660000,"tail":"drop","rank":17,"world":10000,"part":0,"parts":[{"rows":%d,"weights":[1]},{"rows":1000,"weights":[1]}],"phases":[],"unit":"row","length":660000}`, rows)},
			{"mix 1:1, all nodes", fmt.Sprintf(`{"v":1,"kind":"mix","seed":7,"epoch":0,"shuffle":true,"global_batch":20000,"tail":"drop","rank":17,"world":10000,"part":0,"parts":[{"rows":%d,"weights":[1]},{"rows":1000,"weights":[1]}],"phases":[],"unit":"row","length":%d}`, rows, rows)},
			{"take", `{"v":1,"kind":"take"}`},
		} {
			b.Run(fmt.Sprintf("nodes=%d/%s", nodes, tt.name), func(b *testing.B) {
				var info *flight.FlightInfo
				for b.Loop() {
					info = answerOf(b, v, seal, tt.command)
				}
				b.ReportMetric(float64(len(info.Endpoint)), "endpoints")
				b.ReportMetric(float64(proto.Size(info)), "bytes")
			})
		}
	}
}
