// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package assign

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

func TestAssign(t *testing.T) {
	tests := []struct {
		name    string
		weights []int64
		nodes   int
		want    []Range
	}{
		{"no splits", nil, 3, []Range{{0, 0}, {0, 0}, {0, 0}}},
		{"one node takes all", []int64{5, 1, 9}, 1, []Range{{0, 3}}},
		{"equal weights", []int64{7, 7, 7, 7}, 2, []Range{{0, 2}, {2, 4}}},
		{"one heavy split in front", []int64{100, 1, 1, 1}, 2, []Range{{0, 1}, {1, 4}}},
		{"fewer splits than nodes", []int64{3, 3}, 4, []Range{{0, 0}, {0, 1}, {1, 1}, {1, 2}}},
		{"no weight is dealt by count", []int64{0, 0, 0, 0}, 2, []Range{{0, 2}, {2, 4}}},
		{"weights near the limit", []int64{1 << 61, 1 << 61, 1 << 61}, 3, []Range{{0, 1}, {1, 2}, {2, 3}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, ByWeight(tt.weights, tt.nodes)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestAssignCoversAndBalances checks over random plans that every split is assigned once, in order, and that no node has more than
// its equal share and one split.
func TestAssignCoversAndBalances(t *testing.T) {
	rng := seedtest.New(t)
	for range 2000 {
		weights := make([]int64, rng.IntN(60))
		var total, largest int64
		for i := range weights {
			weights[i] = rng.Int64N(1000)
			total += weights[i]
			largest = max(largest, weights[i])
		}
		nodes := 1 + rng.IntN(12)
		next := 0
		for _, run := range ByWeight(weights, nodes) {
			if run.First != next || run.End < run.First {
				t.Fatalf("%v on %d nodes: run %v does not go on at %d", weights, nodes, run, next)
			}
			var load int64
			for _, w := range weights[run.First:run.End] {
				load += w
			}
			if load > total/int64(nodes)+largest+1 {
				t.Fatalf("%v on %d nodes: run %v holds %d of %d", weights, nodes, run, load, total)
			}
			next = run.End
		}
		if next != len(weights) {
			t.Fatalf("%v on %d nodes: splits from %d on are nobody's", weights, nodes, next)
		}
	}
}

func TestBoundsOf(t *testing.T) {
	want := []Bounds{{0, 4}, {4, 4}, {4, 9}}
	if diff := cmp.Diff(want, BoundsOf([]int64{4, 0, 5})); diff != "" {
		t.Error(diff)
	}
}
