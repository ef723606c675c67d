// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"encoding/json"
	"os"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// vector is one of test/golden/pack_vectors.json, which the Python tests read as well.
type vector struct {
	Tokens, Packs, Window, Multiple, Quadratic, Seed, Epoch uint64

	Lengths []int32
	Steps   []step
}

type step struct {
	Position uint64
	Step     int
	Packs    [][]int // positions in the epoch
	Ranks    map[string][][]int32
}

func TestGoldenPacks(t *testing.T) {
	text, err := os.ReadFile("../../test/golden/pack_vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []vector
	if err := json.Unmarshal(text, &vectors); err != nil || len(vectors) == 0 {
		t.Fatal("the golden file holds no vectors", err)
	}
	for i, v := range vectors {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			l := Law{v.Tokens, v.Packs, v.Window, v.Multiple, v.Quadratic, Refuse}
			if diff := cmp.Diff(v.Steps, walk(t, l, v)); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}

// walk packs all rows of a vector.
func walk(t *testing.T, l Law, v vector) (steps []step) {
	t.Helper()
	if err := l.Validate(); err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(v.Lengths); {
		w, err := l.Pack(v.Lengths[at:], v.Seed, v.Epoch, uint64(at))
		if err != nil {
			t.Fatal(err)
		}
		for i := range w.Steps() {
			first, end := w.Step(i)
			s := step{Position: uint64(at), Step: i, Ranks: map[string][][]int32{}}
			for pack := first; pack < end; pack++ {
				var own []int
				for _, p := range w.Pack(pack) {
					own = append(own, at+int(p.Row))
				}
				s.Packs = append(s.Packs, own)
			}
			for world := range uint64(3) {
				dealt := Deal(w.Costs[first:end], world+1)
				var ranks [][]int32
				for rank := range world + 1 {
					ranks = append(ranks, dealt.Of(rank))
				}
				s.Ranks[strconv.FormatUint(world+1, 10)] = ranks
			}
			steps = append(steps, s)
		}
		at += w.Rows
	}
	return steps
}
