// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"cmp"
	"slices"
)

// Dealt says which pack each rank gets in each micro-batch. It is immutable.
type Dealt struct {
	ranks  int       // those that may get packs
	rounds [][]int32 // by micro-batch and rank; -1: none
}

// Deal divides packs with these costs among the ranks of a world: the dearest of each micro-batch goes to the rank with the least cost so far.
func Deal(costs []uint64, world uint64) Dealt {
	d := Dealt{ranks: int(min(world, uint64(len(costs))))} // if there are more ranks, they get none
	dearest, ranks, sums := numbers(len(costs)), numbers(d.ranks), make([]uint64, d.ranks)
	slices.SortStableFunc(dearest, func(a, b int32) int { return cmp.Compare(costs[b], costs[a]) })
	for len(dearest) > 0 {
		round := slices.Repeat([]int32{-1}, d.ranks)
		slices.SortFunc(ranks, func(a, b int32) int { return cmp.Or(cmp.Compare(sums[a], sums[b]), cmp.Compare(a, b)) })
		own := dearest[:min(d.ranks, len(dearest))]
		dearest = dearest[len(own):]
		for i, pack := range own {
			round[ranks[i]] = pack
			sums[ranks[i]] += costs[pack]
		}
		d.rounds = append(d.rounds, round)
	}
	return d
}

// Of returns the packs of a rank, one for each micro-batch; -1: none.
func (d Dealt) Of(rank uint64) []int32 {
	own := make([]int32, len(d.rounds))
	for i, round := range d.rounds {
		own[i] = -1
		if rank < uint64(d.ranks) {
			own[i] = round[rank]
		}
	}
	return own
}

func numbers(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(i)
	}
	return out
}
