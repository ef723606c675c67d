// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package epoch

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// lanedVectors is the content of test/golden/lanes_vectors.json, which the Python tests read as well.
type lanedVectors struct {
	vectors
	Rows []struct {
		N, Seed, Epoch  uint64
		GlobalBatch     uint64 `json:"global_batch"`
		Positions, Rows []uint64
	}
}

func TestGoldenLanes(t *testing.T) {
	text, err := os.ReadFile("../../test/golden/lanes_vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v lanedVectors
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Epochs) == 0 || len(v.Rows) == 0 {
		t.Fatal("the golden file holds no vectors")
	}
	for i, c := range v.Epochs {
		e := Epoch{Rows: c.N, Seed: c.Seed, Number: c.Epoch, Shuffle: true, Clump: c.Clump, GlobalBatch: c.GlobalBatch, Tail: c.Tail, Lanes: true}
		for rank, want := range c.Ranks {
			s := Share{Rank: uint64(rank), World: c.World, Workers: 1}
			if diff := cmp.Diff(flatten(want), readAll(t, e, s, 3)); diff != "" {
				t.Errorf("epoch %d, rank %d: rows (-want +got):\n%s", i, rank, diff)
			}
		}
	}
	for _, c := range v.Rows {
		l := newLaned(Epoch{Rows: c.N, Seed: c.Seed, Number: c.Epoch, Shuffle: true, Clump: 1, GlobalBatch: c.GlobalBatch, Tail: Keep, Lanes: true})
		for i, p := range c.Positions {
			var runs [1]Run
			if l.place(runs[:], p, 1); runs[0].First != c.Rows[i] {
				t.Errorf("%d rows: position %d holds row %d, want %d", c.N, p, runs[0].First, c.Rows[i])
			}
		}
	}
}

// TestLanesAreExact reads random epochs in order version 2, by the ranks of a random world: every row comes once, every step is whole, is the
// same for every world, and takes from each range in proportion, and a rank reads few ranges. LANES_CASES is the number of epochs.
func TestLanesAreExact(t *testing.T) {
	cases, rng := setting(t, "LANES_CASES", seedtest.Cases[uint64](10, 25)), seedtest.New(t)
	for range cases {
		batch := leastLaned + rng.Uint64N(100)
		e := Epoch{Rows: rng.Uint64N(3000), Seed: rng.Uint64(), Number: rng.Uint64N(9), Shuffle: true, Clump: 1 + rng.Uint64N(3), Window: rng.Uint64N(9), GlobalBatch: batch, Tail: []Tail{Drop, Pad, Keep}[rng.IntN(3)], Lanes: true}
		checkLanes(t, e, 1+rng.Uint64N(3*lanes))
		if t.Failed() {
			t.FailNow()
		}
	}
}

func setting(t *testing.T, name string, usual uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return usual
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s = %q: want a number", name, text)
	}
	return n
}

func checkLanes(t *testing.T, e Epoch, world uint64) {
	t.Helper()
	about := fmt.Sprintf("%+v in a world of %d", e, world)
	whole := readAll(t, e, Share{World: 1, Workers: 1}, 64)
	ranks := make([][]uint64, world)
	for rank := range world {
		s := Share{Rank: rank, World: world, Workers: 1}
		ranks[rank] = readAll(t, e, s, 7)
		checkRank(t, e, s, ranks[rank])
	}
	var together []uint64
	seen := make([]int, e.Rows)
	for step := range e.Steps() {
		_, size := e.Step(step)
		for rank := range world {
			lo, hi := Shard(rank, world, size)
			together = append(together, ranks[rank][:hi-lo]...)
			ranks[rank] = ranks[rank][hi-lo:]
		}
		var counts [lanes]float64
		for p, row := range whole[step*e.GlobalBatch : step*e.GlobalBatch+size] {
			if step*e.GlobalBatch+uint64(p) < e.Rows {
				seen[row]++
				counts[rangeOf(e, row)]++
			}
		}
		for number, count := range counts {
			lo, hi := Shard(uint64(number), lanes, e.Rows)
			if mean := float64(hi-lo) * float64(min(size, e.Rows-step*e.GlobalBatch)) / float64(e.Rows); count < mean-2 || count > mean+2 {
				t.Errorf("%s: step %d has %v rows of range %d, want about %v", about, step, count, number, mean)
			}
		}
	}
	if !slices.Equal(together, whole) {
		t.Errorf("%s: the ranks' steps together are other rows than in a world of one", about)
	}
	left := e.Rows
	if e.Tail == Drop {
		left = e.Steps() * e.GlobalBatch
	}
	for row, times := range seen {
		if times > 1 || e.Tail != Drop && times == 0 {
			t.Errorf("%s: row %d comes %d times", about, row, times)
		}
		left -= uint64(times)
	}
	if left != 0 {
		t.Errorf("%s: %d rows too few", about, left)
	}
}

// checkRank checks that the rows of a rank are in ranges of LanedRows, that these are few, and each of its rows in few steps.
func checkRank(t *testing.T, e Epoch, s Share, rows []uint64) {
	t.Helper()
	within := e.LanedRows(s)
	read := map[[2]uint64]bool{}
	for _, row := range rows {
		i := slices.IndexFunc(within, func(r [2]uint64) bool { return r[0] <= row && row < r[1] })
		if i < 0 {
			t.Errorf("%+v: rank %d of %d reads row %d, which is not in %v", e, s.Rank, s.World, row, within)
			return
		}
		read[within[i]] = true
	}
	if e.Steps() <= 1 && e.Rows >= e.GlobalBatch && len(read) != len(within) {
		t.Errorf("%+v: rank %d of %d reads %d ranges in one step, want the %d of LanedRows", e, s.Rank, s.World, len(read), len(within))
	}
	if whole := e.Tail == Drop || e.Rows%e.GlobalBatch == 0; whole && len(within) > int(ceil(lanes, s.World))+2 {
		t.Errorf("%+v: rank %d of %d reads %d ranges, want at most %d", e, s.Rank, s.World, len(within), ceil(lanes, s.World)+2)
	}
}

func rangeOf(e Epoch, row uint64) uint64 {
	number := row * lanes / e.Rows
	for {
		if lo, hi := Shard(number, lanes, e.Rows); lo <= row && row < hi {
			return number
		}
		number++
	}
}

// TestAnotherBatchGoesOn checks that the positions before a step of two global batches have the same rows with both.
func TestAnotherBatchGoesOn(t *testing.T) {
	firsts := func(batch uint64) []uint64 {
		e := Epoch{Rows: 1003, Seed: 5, Shuffle: true, Clump: 1, GlobalBatch: batch, Tail: Drop, Lanes: true}
		rows := readAll(t, e, Share{World: 1, Workers: 1}, 64)[:384]
		slices.Sort(rows)
		return rows
	}
	if diff := cmp.Diff(firsts(64), firsts(96)); diff != "" {
		t.Errorf("rows of the first 384 positions by global batch (-64 +96):\n%s", diff)
	}
}

func TestLanesRefuse(t *testing.T) {
	good := Epoch{Rows: 9, Shuffle: true, Clump: 1, GlobalBatch: 64, Tail: Keep, Lanes: true}
	small, ordered := good, good
	small.GlobalBatch, ordered.Shuffle = 63, false
	for want, e := range map[string]Epoch{
		"global_batch = 63: want at least 64 with order = 2":                        small,
		"order = 2: want shuffle = true; without it, the order has version 1 alone": ordered,
	} {
		if err := e.Validate(); err == nil || err.Error() != want {
			t.Errorf("%+v: %v, want %q", e, err, want)
		}
	}
	if err := (Mix{Unit: RowUnit, Parts: []Part{{Rows: 9, Weights: []uint64{1}}}}).Validate(good); err == nil {
		t.Error("a mixture with lanes is accepted")
	}
}

// TestPairsOfLanes counts how often two rows of one range are in one step, beside version 1: less often by about lanes/GlobalBatch.
func TestPairsOfLanes(t *testing.T) {
	pairs := func(laned bool) (count float64) {
		e := Epoch{Rows: 1 << 17, Seed: 7, Shuffle: true, Clump: 1, GlobalBatch: 1024, Tail: Drop, Lanes: laned}
		for step := range slices.Chunk(readAll(t, e, Share{World: 1, Workers: 1}, 512), int(e.GlobalBatch)) {
			var counts [lanes]float64
			for _, row := range step {
				counts[rangeOf(e, row)]++
			}
			for _, n := range counts {
				count += n * (n - 1) / 2
			}
		}
		return count
	}
	ratio := pairs(true) / pairs(false)
	t.Logf("pairs of rows of one range in one step of 1024 rows: %.4f of those in version 1", ratio)
	if ratio < 0.96 || ratio > 0.98 {
		t.Errorf("%.4f, want about 1 - 32/1024", ratio)
	}
}

func BenchmarkLanes(b *testing.B) {
	for _, world := range []uint64{1, 100, 10_000} {
		b.Run(fmt.Sprintf("world=%d", world), func(b *testing.B) {
			e := Epoch{Rows: 1 << 50, Shuffle: true, Clump: 1, GlobalBatch: 20_000, Tail: Drop, Lanes: true}
			dst := make([]Run, 512)
			c, err := NewCursor(e, Share{Rank: world / 3, World: world, Workers: 1})
			if err != nil {
				b.Fatal(err)
			}
			perSecond(b, len(dst), func(int) {
				for passed := uint64(0); passed < 512; {
					_, some := c.Next(dst, 512-passed)
					passed += some
				}
			})
		})
	}
}
