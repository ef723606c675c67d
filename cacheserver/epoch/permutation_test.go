// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package epoch

import (
	"math"
	"testing"
	"time"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

func mustPermutation(t testing.TB, n, seed, epoch uint64) Permutation {
	t.Helper()
	p, err := NewPermutation(n, seed, epoch)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestNewPermutationRefuses(t *testing.T) {
	for _, n := range []uint64{0, 1 << 62, math.MaxUint64} {
		if _, err := NewPermutation(n, 0, 0); err == nil {
			t.Errorf("n = %d is accepted", n)
		}
	}
}

func TestPermutationOfNothingAndOne(t *testing.T) {
	var zero Permutation
	one := mustPermutation(t, 1, 5, 6)
	for name, p := range map[string]*Permutation{"zero value": &zero, "n = 1": &one} {
		dst := []uint64{7, 7, 7}
		p.Fill(dst, 2)
		if p.At(9) != 0 || p.Inverse(9) != 0 || dst[0]|dst[1]|dst[2] != 0 {
			t.Errorf("%s: At %d, Inverse %d, Fill %v: want 0s", name, p.At(9), p.Inverse(9), dst)
		}
	}
}

// TestBijection checks for every n up to 4096 that Fill yields each value once, and that Inverse undoes it.
func TestBijection(t *testing.T) {
	rng := seedtest.New(t)
	seeds := [][2]uint64{{0, 0}, {rng.Uint64(), rng.Uint64()}}
	dst := make([]uint64, 4096)
	for n := uint64(1); n <= 4096; n++ {
		for _, s := range seeds {
			p := mustPermutation(t, n, s[0], s[1])
			var seen [4096]bool
			p.Fill(dst[:n], 0)
			for x, y := range dst[:n] {
				if y >= n || seen[y] {
					t.Fatalf("n %d, seed %d, epoch %d: P(%d) = %d is outside or taken", n, s[0], s[1], x, y)
				}
				seen[y] = true
			}
			for x := n % 7; x < n; x += 61 {
				if got := p.Inverse(dst[x]); got != x {
					t.Fatalf("n %d, seed %d, epoch %d: Inverse(P(%d)) = %d", n, s[0], s[1], x, got)
				}
			}
		}
	}
}

// TestInverse checks 10^6 random points of permutations of up to 2^62 elements.
func TestInverse(t *testing.T) {
	rng := seedtest.New(t)
	const each = 1000
	for range seedtest.Cases(100, 1000) {
		n := 1 + rng.Uint64()>>(2+rng.UintN(62))
		n = min(n, limit-1)
		p := mustPermutation(t, n, rng.Uint64(), rng.Uint64())
		for range each {
			x := rng.Uint64N(n)
			y := p.At(x)
			if y >= n || p.Inverse(y) != x {
				t.Fatalf("n %d: P(%d) = %d, Inverse %d", n, x, y, p.Inverse(y))
			}
		}
	}
}

// TestFillEqualsAt covers lengths around the block size and the number of indices permuted at once, starts near the end, and the
// largest n.
func TestFillEqualsAt(t *testing.T) {
	rng := seedtest.New(t)
	sizes := []uint64{2, 3, 4097, 1 << 13, 1<<13 + 1, 1_000_000, 1<<40 + 1, limit - 1}
	for _, n := range sizes {
		p := mustPermutation(t, n, rng.Uint64(), rng.Uint64())
		for _, length := range []int{0, 1, 3, 4, 5, 255, 256, 257, 1023} {
			first := rng.Uint64N(n)
			if length%2 == 1 {
				first = n - 1
			}
			dst := make([]uint64, length)
			p.Fill(dst, first)
			for i, got := range dst {
				if want := p.At((first + uint64(i)) % n); got != want {
					t.Fatalf("n %d: Fill from %d: [%d] = %d, want %d", n, first, i, got, want)
				}
			}
		}
	}
}

func TestArgumentsWrap(t *testing.T) {
	p := mustPermutation(t, 10, 1, 2)
	for x := range uint64(10) {
		if p.At(x+10) != p.At(x) || p.Inverse(x+10) != p.Inverse(x) {
			t.Errorf("At and Inverse of %d differ from those of %d", x+10, x)
		}
	}
}

func TestEpochsDiffer(t *testing.T) {
	const n = 1000
	a, b, c := mustPermutation(t, n, 1, 0), mustPermutation(t, n, 1, 1), mustPermutation(t, n, 2, 0)
	var sameEpoch, sameSeed int
	for x := range uint64(n) {
		if a.At(x) == b.At(x) {
			sameEpoch++
		}
		if a.At(x) == c.At(x) {
			sameSeed++
		}
	}
	if sameEpoch > 20 || sameSeed > 20 {
		t.Errorf("%d points stay in the next epoch, %d under the next seed: want about 1", sameEpoch, sameSeed)
	}
}

func TestNothingAllocates(t *testing.T) {
	dst, runs := make([]uint64, 1000), make([]Run, 1000)
	e := Epoch{Rows: 1_000_000, Shuffle: true, Clump: 3, GlobalBatch: 64, Tail: Keep}
	c, err := NewCursor(e, Share{World: 3, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	allocs := testing.AllocsPerRun(10, func() {
		p, err := NewPermutation(1_000_003, 1, 2)
		if err != nil {
			panic(err)
		}
		p.Fill(dst, 5)
		c.Next(runs, 1000)
	})
	if allocs != 0 {
		t.Errorf("%v allocations, want none", allocs)
	}
}

func BenchmarkFill(b *testing.B) {
	for _, n := range []uint64{1_000_000, 1<<20 + 1, 1 << 40} {
		b.Run(name(n), func(b *testing.B) {
			p := mustPermutation(b, n, 7, 2)
			dst := make([]uint64, 4096)
			perSecond(b, len(dst), func(i int) { p.Fill(dst, uint64(i)*4096) })
		})
	}
}

func BenchmarkAt(b *testing.B) {
	p := mustPermutation(b, 1_000_000, 7, 2)
	var sum uint64
	perSecond(b, 1, func(i int) { sum += p.At(uint64(i)) })
	if sum == 0 {
		b.Log("the sum is zero")
	}
}

// perSecond runs work b.N times and reports items per second.
func perSecond(b *testing.B, items int, work func(i int)) {
	b.Helper()
	start := time.Now()
	for i := range b.N {
		work(i)
	}
	b.ReportMetric(float64(b.N)*float64(items)/time.Since(start).Seconds()/1e6, "M_indices/s")
}
