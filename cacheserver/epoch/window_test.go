// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package epoch

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestGoldenWindows reads epochs with windows, in both versions of the order.
func TestGoldenWindows(t *testing.T) {
	text, err := os.ReadFile("../../test/golden/window_vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []struct {
			Rows, Seed, Epoch, Clump, Window, World, Order uint64
			GlobalBatch                                    uint64 `json:"global_batch"`
			StartStep                                      uint64 `json:"start_step"`
			Tail                                           Tail
			Ranks                                          [][]rankStep
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) < 5 {
		t.Fatalf("%d cases: is this the right file?", len(file.Cases))
	}
	for i, v := range file.Cases {
		e := Epoch{Rows: v.Rows, Seed: v.Seed, Number: v.Epoch, Shuffle: true, Clump: v.Clump, Window: v.Window, GlobalBatch: v.GlobalBatch, Tail: v.Tail, Lanes: v.Order == 2}
		for rank, want := range v.Ranks {
			s := Share{Rank: uint64(rank), World: v.World, Workers: 1, StartStep: v.StartStep}
			if diff := cmp.Diff(flatten(want), readAll(t, e, s, 3)); diff != "" {
				t.Errorf("case %d, rank %d: rows (-want +got):\n%s", i, rank, diff)
			}
		}
	}
}

// TestPairsOfWindows counts how often two rows of one clump are in one step, beside an order that shuffles all rows, and how many of the
// clumps a step has rows of.
func TestPairsOfWindows(t *testing.T) {
	const rows, clump, batch = 1 << 20, 512, 1024
	measure := func(clump, window uint64) (pairs, clumps float64) {
		e := Epoch{Rows: rows, Seed: 7, Shuffle: true, Clump: clump, Window: window, GlobalBatch: batch, Tail: Drop}
		for step := range slices.Chunk(readAll(t, e, Share{World: 1, Workers: 1}, 512), batch) {
			counts := map[uint64]float64{}
			for _, row := range step {
				counts[row/512]++
			}
			for _, n := range counts {
				pairs += n * (n - 1) / 2
			}
			clumps += float64(len(counts)) / (rows / batch)
		}
		return pairs, clumps
	}
	whole, most := measure(1, 0)
	t.Logf("clump  1, window    0 (    all of 1048576 rows): %6.1f clumps of 512 rows in a step of 1024", most)
	for _, window := range []uint64{0, 8, 64, 256, 512, 2048} {
		pairs, clumps := measure(clump, window)
		t.Logf("clump 512, window %4d (%7d of 1048576 rows): %6.1f clumps in a step; two rows of a clump are in one step %6.2f times as often", window, max(window, 1)*clump, clumps, pairs/whole)
		if want := float64(rows) / float64(window*clump); window > 0 && math.Abs(pairs/whole/want-1) > 0.05 {
			t.Errorf("window %d: two rows of a clump are in one step %.2f times as often, want %.2f, the windows of an epoch", window, pairs/whole, want)
		}
	}
}
