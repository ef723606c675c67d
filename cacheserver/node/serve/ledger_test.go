// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// ledgerSchedules is the number of trainings that TestEveryChosenRowOnce simulates.
const ledgerSchedules = 2000

// TestEveryChosenRowOnce simulates trainings on selections: at random steps a training stops, and goes on with other numbers of ranks,
// workers and data nodes. In each epoch, every row of the selection is read exactly once.
func TestEveryChosenRowOnce(t *testing.T) {
	r := seedtest.New(t)
	for range seedtest.Cases(300, ledgerSchedules) {
		c := randomSelection(r)
		want := c.selected(t)
		c.Want.Rows = uint64(len(want))
		e := epoch.Epoch{
			Rows: c.Want.Rows, Seed: r.Uint64(), Number: r.Uint64(), Shuffle: r.IntN(4) > 0, Clump: 1 + r.Uint64N(20), Window: r.Uint64N(3),
			GlobalBatch: 1 + r.Uint64N(60), Tail: epoch.Keep,
		}
		got := []int64{}
		for step := uint64(0); step < e.Steps(); {
			stop := min(step+1+r.Uint64N(20), e.Steps()) // here the training is stopped
			got = append(got, c.steps(t, r, e, step, stop)...)
			step = stop
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%+v, %+v: rows read (-want +got):\n%s", c, e, diff)
		}
	}
}

// TestPartsOfASplitAreDisjoint checks that the parts of a split together have every filtered row once.
func TestPartsOfASplitAreDisjoint(t *testing.T) {
	r := seedtest.New(t)
	for range 200 {
		c := randomSelection(r)
		s := epoch.Split{Seed: r.Uint64(), Of: 1 + r.Uint64N(1000), Shuffle: r.IntN(3) > 0}
		got := []int64{}
		for s.From < s.Of {
			s.To = s.From + 1 + r.Uint64N(s.Of-s.From)
			c.Split = &s
			got = append(got, c.selected(t)...)
			s.From = s.To
		}
		slices.Sort(got)
		c.Split = nil
		if diff := cmp.Diff(c.selected(t), got); diff != "" {
			t.Fatalf("%+v: rows of all parts of %d (-want +got):\n%s", c, s.Of, diff)
		}
	}
}

// randomSelection is a table of some rows with a random filter and, mostly, a split.
func randomSelection(r *rand.Rand) *selectionCase {
	c := &selectionCase{Rows: r.Uint64N(700)}
	chance := []float64{0.01, 0.1, 0.5, 0.99, 1}[r.IntN(5)]
	c.Filter = []int64{}
	for row := range int64(c.Rows) {
		if r.Float64() < chance {
			c.Filter = append(c.Filter, row)
		}
	}
	if r.IntN(4) > 0 {
		s := epoch.Split{Seed: r.Uint64(), Of: 1 + r.Uint64N(20), Shuffle: r.IntN(4) > 0}
		s.From = r.Uint64N(s.Of + 1)
		s.To = s.From + r.Uint64N(s.Of-s.From+1)
		c.Split = &s
	}
	c.Want.Filtered = uint64(len(c.Filter))
	return c
}

// selected lists the rows of the table that the selection has, in row order, by the definition of a split.
func (c *selectionCase) selected(t *testing.T) []int64 {
	t.Helper()
	n := uint64(len(c.Filter))
	if c.Split == nil || n == 0 {
		return slices.Clone(c.Filter)
	}
	p, err := epoch.NewPermutation(n, c.Split.Seed, 0)
	if err != nil {
		t.Fatal(err)
	}
	rows := []int64{}
	for at := c.Split.From * n / c.Split.Of; at < c.Split.To*n/c.Split.Of; at++ {
		row := at
		if c.Split.Shuffle {
			row = p.At(at)
		}
		rows = append(rows, c.Filter[row])
	}
	slices.Sort(rows)
	return rows
}

// steps lists the rows that all ranks and workers of a run read in steps [from, to), from all data nodes.
func (c *selectionCase) steps(t *testing.T, r *rand.Rand, e epoch.Epoch, from, to uint64) (got []int64) {
	t.Helper()
	cuts := []int64{0, int64(c.Rows)}
	for range r.IntN(4) {
		cuts = append(cuts, r.Int64N(int64(c.Rows)+1))
	}
	slices.Sort(cuts)
	world, workers := 1+r.Uint64N(5), 1+r.Uint64N(3)
	stopped := e // ends with step to
	stopped.Rows = min(e.Rows, to*e.GlobalBatch)
	for rank := range world {
		for worker := range workers {
			share := epoch.Share{Rank: rank, World: world, Worker: worker, Workers: workers, StartStep: from}
			for i := range len(cuts) - 1 {
				node := assign.Bounds{cuts[i], cuts[i+1]}
				index, bounds := c.indexOf(t, node)
				l := Lent{Index: index, Ticket: protocol.Ticket{
					Kind: protocol.Epoch, Bounds: bounds, Split: c.Split, Filtered: int64(c.Want.Filtered), Epoch: e, Share: share,
				}}
				w, err := l.walk()
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, until(w, node[0], blockRuns, stopped.Count(share))...)
			}
		}
	}
	return got
}
