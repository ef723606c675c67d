// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
)

const (
	batchSize  = 100
	seed       = 7
	checkpoint = 60 // step, of 200, at which training stops
)

// TestResumeWithMoreRanks trains two ranks with our loader, stops them in the middle of an epoch, and continues from the checkpoint
// with three. The rows of every step must be those that the oracle computes.
func TestResumeWithMoreRanks(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	metadata := reviews.write(t)
	first := cacheJob("first", metadata, 2, "loader")
	first.Args = map[string]any{"batch": batchSize, "seed": seed, "checkpoint_every": checkpoint, "pause": 0.05, "order": true}
	r := train(t, ns, first)
	before := r.passes(t, 2, checkpoint)
	cluster.Delete(t, r.get(t))

	var rowIDs []int64 // by row index
	state := ""
	for _, line := range before[0] {
		rowIDs = append(rowIDs, line.Order...)
		if line.Checkpoint == checkpoint {
			state = line.State
		}
	}
	eachOnce(t, rowIDs, reviews.Rows)

	second := cacheJob("second", metadata, 3, "loader")
	second.Args = map[string]any{"batch": batchSize, "seed": seed, "state": state}
	r = train(t, ns, second)
	r.ends(t, trainer.TrainJobComplete)
	s := r.look(t)

	var all []int64
	for rank, share := range shares(t, 2, 0) {
		all = append(all, sameSteps(t, fmt.Sprintf("rank %d of 2", rank), before[rank], share[:checkpoint], rowIDs)...)
	}
	for rank, share := range shares(t, 3, checkpoint) {
		lines := parse(t, s.Logs[fmt.Sprintf("node-%d", rank)])
		all = append(all, sameSteps(t, fmt.Sprintf("rank %d of 3", rank), lines, share, rowIDs)...)
	}
	eachOnce(t, all, reviews.Rows)
}

// passes waits until all ranks have finished the steps below the given one, and returns the output of each.
func (r *run) passes(t *testing.T, ranks, step int) [][]outputLine {
	t.Helper()
	lines := make([][]outputLine, ranks)
	await(t, fmt.Sprintf("%d ranks to pass step %d", ranks, step), func() error {
		for rank := range ranks {
			var err error
			if lines[rank], err = r.now(t, rank); err != nil {
				return err
			}
			if !slices.ContainsFunc(lines[rank], func(l outputLine) bool { return l.Step != nil && *l.Step >= step }) {
				return fmt.Errorf("rank %d is not there yet, it wrote %d lines", rank, len(lines[rank]))
			}
		}
		return nil
	})
	return lines
}

// step is a step of one rank, as the oracle computes it: its number and the rows' indices.
type step struct {
	number int
	rows   []int64
}

// shares has the oracle compute the rest of epoch 0 from a step on, by rank.
func shares(t *testing.T, world, start int) [][]step {
	t.Helper()
	var epochs []map[string]any
	for rank := range world {
		epochs = append(epochs, map[string]any{
			"rows": reviews.Rows, "seed": seed, "global_batch": batchSize, "tail": "keep", "rank": rank, "world": world, "start_step": start,
		})
	}
	var answer [][][2]json.RawMessage
	if err := json.Unmarshal(runPython(t, nil, epochs, "oracle.py"), &answer); err != nil {
		t.Fatal(err)
	}
	out := make([][]step, world)
	for rank, steps := range answer {
		for _, pair := range steps {
			var s step
			if err := json.Unmarshal(pair[0], &s.number); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(pair[1], &s.rows); err != nil {
				t.Fatal(err)
			}
			out[rank] = append(out[rank], s)
		}
	}
	return out
}

// sameSteps checks that a rank got the steps that the oracle computed, and returns their ids.
func sameSteps(t *testing.T, who string, lines []outputLine, want []step, rowIDs []int64) []int64 {
	t.Helper()
	got := map[int][]int64{}
	for _, line := range lines {
		if line.Step != nil {
			got[*line.Step] = line.IDs
		}
	}
	var all []int64
	for _, w := range want {
		ids := make([]int64, len(w.rows))
		for i, row := range w.rows {
			ids[i] = rowIDs[row]
		}
		if !slices.Equal(got[w.number], ids) {
			t.Fatalf("%s: step %d has the ids %v, want %v", who, w.number, got[w.number], ids)
		}
		all = append(all, ids...)
	}
	return all
}
