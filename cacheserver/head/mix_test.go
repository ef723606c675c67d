// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"math"
	"testing"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// TestMixturesAreCountedExactly counts the rows of shares of at most 2^6 times the sum of the weights, as the contract says, and checks that
// every node with rows of a share is among those of the answer.
func TestMixturesAreCountedExactly(t *testing.T) {
	r := seedtest.New(t)
	for range 60 {
		m := &epoch.Mix{Unit: epoch.RowUnit, Parts: []epoch.Part{
			{Rows: 1 + r.Uint64N(40), Weights: []uint64{1 + r.Uint64N(30)}}, {Rows: 9, Weights: []uint64{1 + r.Uint64N(1000)}},
		}}
		total := m.Parts[0].Weights[0] + m.Parts[1].Weights[0]
		e := epoch.Epoch{Rows: 1 + r.Uint64N(min(total<<6, 6000)), Seed: r.Uint64(), Shuffle: r.IntN(4) > 0, Clump: 1 + r.Uint64N(3), Window: r.Uint64N(3), GlobalBatch: 1 + r.Uint64N(99), Tail: epoch.Keep}
		ticket := protocol.Ticket{Kind: protocol.Mix, Epoch: e, Share: epoch.Share{World: 1, Workers: 1}, Mix: m}
		half := int64(m.Parts[0].Rows / 2)
		v := goldenView(nil, []assign.Bounds{{0, half}, {half, int64(m.Parts[0].Rows)}})
		a := answer{view: v}
		if err := a.mix(protocol.Request{Kind: protocol.Mix, Epoch: e, Share: ticket.Share, Mix: m}); err != nil {
			t.Fatal(err)
		}
		answered := map[int]bool{}
		for _, s := range a.shares {
			answered[s.node] = true
		}
		cursor, err := ticket.Cursor()
		if err != nil {
			t.Fatal(err)
		}
		var rows uint64
		var runs [512]epoch.Run
		for {
			n, passed := cursor.Next(runs[:], math.MaxUint64)
			if passed == 0 {
				break
			}
			for _, run := range runs[:n] {
				rows += run.Rows
				for node, b := range v.places.bounds {
					if int64(run.First) < b[1] && int64(run.First+run.Rows) > b[0] && !answered[node] {
						t.Fatalf("%+v %+v: row %d of node %d is in the share, the answer has nodes %v", e, m, run.First, node, answered)
					}
				}
			}
		}
		if uint64(a.records) != rows {
			t.Fatalf("%+v %+v: %d rows, want %d", e, m, a.records, rows)
		}
	}
}
