// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package epoch

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// vectors is the content of test/golden/order_vectors.json, which the Python tests read as well.
type vectors struct {
	Permutations []struct {
		N, Seed, Epoch uint64
		X, Y           []uint64
	}
	Epochs []struct {
		N, Seed, Epoch, Clump, World uint64
		GlobalBatch                  uint64 `json:"global_batch"`
		Shuffle                      bool
		Tail                         Tail
		Ranks                        [][]rankStep
	}
}

// UnmarshalJSON reads [step, [row...], [valid...]].
func (s *rankStep) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&s.Step, &s.Rows, &s.Valid})
}

func readVectors(t *testing.T) vectors {
	t.Helper()
	text, err := os.ReadFile("../../test/golden/order_vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Permutations) == 0 || len(v.Epochs) == 0 {
		t.Fatal("the golden file holds no vectors")
	}
	return v
}

func TestGoldenPermutations(t *testing.T) {
	for _, v := range readVectors(t).Permutations {
		t.Run(fmt.Sprintf("n=%d seed=%d epoch=%d", v.N, v.Seed, v.Epoch), func(t *testing.T) {
			p := mustPermutation(t, v.N, v.Seed, v.Epoch)
			for i, x := range v.X {
				var filled [1]uint64
				p.Fill(filled[:], x)
				if p.At(x) != v.Y[i] || filled[0] != v.Y[i] || p.Inverse(v.Y[i]) != x {
					t.Errorf("P(%d) = %d, Fill %d, Inverse(%d) = %d: want %d", x, p.At(x), filled[0], v.Y[i],
						p.Inverse(v.Y[i]), v.Y[i])
				}
			}
		})
	}
}

func TestGoldenEpochs(t *testing.T) {
	for i, v := range readVectors(t).Epochs {
		e := Epoch{Rows: v.N, Seed: v.Seed, Number: v.Epoch, Shuffle: v.Shuffle, Clump: v.Clump,
			GlobalBatch: v.GlobalBatch, Tail: v.Tail}
		for rank, want := range v.Ranks {
			t.Run(fmt.Sprintf("epoch %d rank %d", i, rank), func(t *testing.T) {
				s := Share{Rank: uint64(rank), World: v.World, Workers: 1}
				if got := uint64(len(want)); got != e.Steps() {
					t.Errorf("%d steps, want %d", e.Steps(), got)
				}
				if diff := cmp.Diff(flatten(want), readAll(t, e, s, 3)); diff != "" {
					t.Errorf("rows (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(valid(want), validBySteps(e, s)); diff != "" {
					t.Errorf("valid (-want +got):\n%s", diff)
				}
			})
		}
	}
}

func valid(steps []rankStep) []bool {
	all := []bool{}
	for _, s := range steps {
		all = append(all, s.Valid...)
	}
	return all
}

// validBySteps computes which positions are padding as a client does: from Step and Shard only.
func validBySteps(e Epoch, s Share) []bool {
	all := []bool{}
	for step := range e.Steps() {
		first, size := e.Step(step)
		lo, hi := Shard(s.Rank, s.World, size)
		for p := first + lo; p < first+hi; p++ {
			all = append(all, p < e.Rows)
		}
	}
	return all
}
