// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/pick"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/rows"
)

// selectionCase is a case of test/golden/selection_vectors.json, which the Python tests read as well.
type selectionCase struct {
	Rows               uint64
	Nodes              []assign.Bounds
	Filter             []int64 // nil: none
	Split              *epoch.Split
	Seed, Epoch, Clump uint64
	GlobalBatch        uint64 `json:"global_batch"`
	World              uint64
	Shuffle            bool
	Tail               epoch.Tail
	Want               struct {
		Filtered uint64 `json:"filtered_rows"`
		Rows     uint64
		Streams  [][][]int64 // by rank and node
	}
}

func readSelections(t *testing.T) []selectionCase {
	t.Helper()
	text, err := os.ReadFile("../../../test/golden/selection_vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Cases []selectionCase }
	if err := json.Unmarshal(text, &file); err != nil || len(file.Cases) < 10 {
		t.Fatalf("%d cases, %v: is this the right file?", len(file.Cases), err)
	}
	return file.Cases
}

// indexOf returns the index of the rows of a node that a filter selects, and the range of filtered rows that the node holds. The index
// is nil without a filter.
func (c *selectionCase) indexOf(t *testing.T, node assign.Bounds) (*pick.Index, assign.Bounds) {
	t.Helper()
	if c.Filter == nil {
		return nil, node
	}
	first, _ := slices.BinarySearch(c.Filter, node[0])
	end, _ := slices.BinarySearch(c.Filter, node[1])
	words := make([]uint64, pick.Words(uint64(node.Len())))
	for _, row := range c.Filter[first:end] {
		words[(row-node[0])/64] |= 1 << ((row - node[0]) % 64)
	}
	index, err := pick.New(words, uint64(node.Len()))
	if err != nil {
		t.Fatal(err)
	}
	return index, assign.Bounds{int64(first), int64(end)}
}

func TestGoldenSelections(t *testing.T) {
	for i, c := range readSelections(t) {
		if c.Split != nil {
			if lo, hi := c.Split.Bounds(c.Want.Filtered); hi-lo != c.Want.Rows {
				t.Fatalf("case %d: the split has rows [%d, %d), want %d", i, lo, hi, c.Want.Rows)
			}
		}
		for rank, streams := range c.Want.Streams {
			for node, want := range streams {
				t.Run(fmt.Sprintf("case %d rank %d node %d", i, rank, node), func(t *testing.T) {
					index, bounds := c.indexOf(t, c.Nodes[node])
					l := Lent{Index: index, Ticket: protocol.Ticket{
						Kind: protocol.Epoch, Bounds: bounds, Split: c.Split, Filtered: int64(c.Want.Filtered),
						Epoch: epoch.Epoch{Rows: c.Want.Rows, Seed: c.Seed, Number: c.Epoch, Shuffle: c.Shuffle, Clump: c.Clump, GlobalBatch: c.GlobalBatch, Tail: c.Tail},
						Share: epoch.Share{Rank: uint64(rank), World: c.World, Workers: 1},
					}}
					for _, size := range []int{1, 7, blockRuns} {
						if diff := cmp.Diff(want, walked(t, l, c.Nodes[node][0], size)); diff != "" {
							t.Errorf("%d runs at a time (-want +got):\n%s", size, diff)
						}
					}
				})
			}
		}
	}
}

// walked lists the rows of the table that a stream sends, from a node whose first row is first, some runs at a time.
func walked(t *testing.T, l Lent, first int64, size int) []int64 {
	t.Helper()
	w, err := l.walk()
	if err != nil {
		t.Fatal(err)
	}
	return until(w, first, size, endless)
}

// until is walked for a number of positions.
func until(w walk, first int64, size int, positions uint64) []int64 {
	got, runs := []int64{}, make([]rows.Run, size)
	for positions > 0 {
		n, passed := w.Next(runs, positions)
		if passed == 0 {
			break
		}
		positions -= passed
		for _, run := range runs[:n] {
			for row := range run.Rows {
				got = append(got, first+int64(run.First+row))
			}
		}
	}
	return got
}
