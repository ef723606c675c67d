// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
)

// packed packs values of width bits each, starting at bit at.
func packed(values []uint64, at int, width uint) []byte {
	all := new(big.Int)
	for _, v := range slices.Backward(values) {
		all.Lsh(all, width).Or(all, new(big.Int).SetUint64(v))
	}
	all.Lsh(all, uint(at))
	out := all.FillBytes(make([]byte, (at+len(values)*int(width)+7)/8))
	slices.Reverse(out)
	return out
}

func TestUnpack(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for width := uint(0); width <= 64; width++ {
		for _, n := range []int{0, 1, 7, 8, 9, 64, 100} {
			at := r.IntN(20)
			want := make([]uint64, n)
			for i := range want {
				want[i] = r.Uint64() & (1<<width - 1)
			}
			src, got := packed(want, at, width), make([]uint64, n)
			unpack(got, src, at, width)
			if !slices.Equal(got, want) {
				t.Fatalf("%d values of %d bits from bit %d on are %d, want %d", n, width, at, got, want)
			}
		}
	}
}

func TestLookup(t *testing.T) {
	dict := []uint32{7, 8, 9, 10, 11}
	for _, n := range []int{1, 8, 9, 100} {
		ids := make([]uint64, n)
		for i := range ids {
			ids[i] = uint64(i % len(dict))
		}
		got := make([]uint32, n)
		if !lookup(got, dict, packed(ids, 3, 3), 3, 3) {
			t.Fatalf("an index of %d is not in the dictionary", n)
		}
		for i, id := range ids {
			if got[i] != dict[id] {
				t.Fatalf("entry %d of %d is %d, want %d", i, n, got[i], dict[id])
			}
		}
		ids[n-1] = uint64(len(dict))
		if lookup(got, dict, packed(ids, 3, 3), 3, 3) {
			t.Errorf("index %d of a dictionary of %d was taken", len(dict), len(dict))
		}
	}
}
