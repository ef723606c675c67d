// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pick_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/cacheserver/pick"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// made returns an index of n rows, in which stretches of rows are selected with a probability that differs from one stretch to the
// next, and the numbers of the selected rows.
func made(t testing.TB, r *rand.Rand, n uint64, densities []float64) (*pick.Index, []uint64) {
	t.Helper()
	words := make([]uint64, pick.Words(n))
	var selected []uint64
	density, left := 0.0, 0
	for i := range n {
		if left == 0 {
			density, left = densities[r.IntN(len(densities))], 1+r.IntN(2000)
		}
		left--
		if r.Float64() < density {
			words[i/64] |= 1 << (i % 64)
			selected = append(selected, i)
		}
	}
	x, err := pick.New(words, n)
	if err != nil {
		t.Fatal(err)
	}
	return x, selected
}

func TestIndex(t *testing.T) {
	r := seedtest.New(t)
	mixes := map[string][]float64{"none": {0}, "few": {0, 0.01}, "half": {0.5}, "uneven": {0, 0.001, 0.5, 1}, "most": {0.99}, "all": {1}}
	for name, densities := range mixes {
		for _, n := range []uint64{0, 1, 63, 64, 65, 511, 512, 513, 100_000 + r.Uint64N(9000)} {
			x, want := made(t, r, n, densities)
			if x.Len() != uint64(len(want)) || x.Rows() != n {
				t.Fatalf("%s: %d of %d rows, want %d of %d", name, x.Len(), x.Rows(), len(want), n)
			}
			got := make([]uint64, len(want))
			for i := range got {
				got[i] = uint64(i)
			}
			x.Select(got)
			if !slices.Equal(got, want) {
				t.Fatalf("%s, %d rows: Select differs: %s", name, n, cmp.Diff(want, got))
			}
			for range 50 {
				checkRuns(t, r, x, want)
			}
			if most := pick.MaxBytes(n); x.Bytes() > most {
				t.Errorf("%s: %d rows take %d bytes, more than MaxBytes, which is %d", name, n, x.Bytes(), most)
			}
		}
	}
}

// checkRuns compares the runs of a random range of the selection, asked for a few at a time.
func checkRuns(t *testing.T, r *rand.Rand, x *pick.Index, selected []uint64) {
	t.Helper()
	first := r.IntN(len(selected) + 1)
	end := first + r.IntN(len(selected)-first+1)
	dst := make([]pick.Run, 1+r.IntN(100))
	var got []uint64
	for at := uint64(first); at < uint64(end); {
		runs, rows := x.Runs(dst, at, uint64(end)-at)
		if runs == 0 {
			t.Fatalf("no run from %d to %d", at, end)
		}
		before := len(got)
		for _, run := range dst[:runs] {
			for i := range run.Rows {
				got = append(got, run.First+i)
			}
		}
		if uint64(len(got)-before) != rows {
			t.Fatalf("runs have %d rows, Runs says %d", len(got)-before, rows)
		}
		at += rows
	}
	if !slices.Equal(got, selected[first:end]) {
		t.Fatalf("runs of [%d, %d) differ", first, end)
	}
}

func TestHashTellsSelectionsApart(t *testing.T) {
	hashes := map[uint64]uint64{}
	for row := range uint64(4096) {
		words := make([]uint64, pick.Words(4096))
		words[row/64] |= 1 << (row % 64)
		x, err := pick.New(words, 4096)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := hashes[x.Hash()]; ok {
			t.Fatalf("rows %d and %d have the same hash", row, other)
		}
		hashes[x.Hash()] = row
	}
}

func TestNewRejects(t *testing.T) {
	if _, err := pick.New(nil, 1); err == nil {
		t.Error("too few words are accepted")
	}
	if _, err := pick.New(nil, pick.MaxRows+1); err == nil {
		t.Error("too many rows are accepted")
	}
}

// BenchmarkSelect measures random selections, in random order, with bitmaps that fit in the cache and one that does not.
func BenchmarkSelect(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	for name, c := range map[string]struct {
		rows  uint64
		every float64
	}{
		"11M rows, 1 in 2": {11 << 20, 0.5}, "11M rows, 1 in 20": {11 << 20, 0.05}, "11M rows, 1 in 50": {11 << 20, 0.02}, "500M rows, 1 in 2": {500 << 20, 0.5},
	} {
		b.Run(name, func(b *testing.B) {
			words := make([]uint64, pick.Words(c.rows))
			for i := range words {
				switch c.every {
				case 0.5:
					words[i] = r.Uint64()
				default:
					for range 64 {
						words[i] <<= 1
						if r.Float64() < c.every {
							words[i] |= 1
						}
					}
				}
			}
			x, err := pick.New(words, c.rows)
			if err != nil {
				b.Fatal(err)
			}
			ks, rows := make([]uint64, 1<<16), make([]uint64, 512)
			for i := range ks {
				ks[i] = r.Uint64N(x.Len())
			}
			b.ResetTimer()
			for i := 0; i < b.N; i += len(rows) {
				copy(rows, ks[i%len(ks):])
				x.Select(rows)
			}
		})
	}
}
