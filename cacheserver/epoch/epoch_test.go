// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package epoch

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

func name(n uint64) string { return "n=" + strconv.FormatUint(n, 10) }

// rankStep is the part of one step that one rank reads.
type rankStep struct {
	Step  uint64
	Rows  []uint64
	Valid []bool
}

// slowSequence lists the rows of an epoch; it is meant for small epochs.
func slowSequence(e Epoch, perm func(k, x uint64) uint64) []uint64 {
	var rows []uint64
	if e.Rows == 0 || !e.Shuffle {
		for r := range e.Rows {
			rows = append(rows, r)
		}
		return rows
	}
	clumps := (e.Rows + e.Clump - 1) / e.Clump
	for i := range clumps {
		first := perm(clumps, i) * e.Clump
		for r := first; r < min(first+e.Clump, e.Rows); r++ {
			rows = append(rows, r)
		}
	}
	return rows
}

// slowWindowed is slowSequence with the rows of each window shuffled, clump by clump.
func slowWindowed(t testing.TB, e Epoch) []uint64 {
	perm := func(k, x uint64) uint64 {
		p := mustPermutation(t, k, e.Seed, e.Number)
		return p.At(x)
	}
	if !e.Shuffle || e.Window == 0 || e.Rows == 0 {
		return slowSequence(e, perm)
	}
	var all []uint64
	clumps := (e.Rows + e.Clump - 1) / e.Clump
	for i := uint64(0); i*e.Window < clumps; i++ {
		var rows []uint64
		for j := i * e.Window; j < min((i+1)*e.Window, clumps); j++ {
			first := perm(clumps, j) * e.Clump
			for r := first; r < min(first+e.Clump, e.Rows); r++ {
				rows = append(rows, r)
			}
		}
		within := mustPermutation(t, uint64(len(rows)), mix(e.Seed+0xD1B54A32D192ED03), mix(e.Number)+i)
		for x := range rows {
			all = append(all, rows[within.At(uint64(x))])
		}
	}
	return all
}

// slowRank is a reference implementation of a rank's epoch, step by step and position by position.
func slowRank(t testing.TB, e Epoch, s Share) []rankStep {
	rows := slowWindowed(t, e)
	steps := e.Rows / e.GlobalBatch
	if e.Tail != Drop && e.Rows%e.GlobalBatch != 0 {
		steps++
	}
	var out []rankStep
	for step := s.StartStep; step < steps; step++ {
		if step%s.Workers != s.Worker {
			continue
		}
		size := e.GlobalBatch
		if e.Tail == Keep {
			size = min(size, e.Rows-step*e.GlobalBatch)
		}
		got := rankStep{Step: step, Rows: []uint64{}, Valid: []bool{}}
		for i := s.Rank * size / s.World; i < (s.Rank+1)*size/s.World; i++ {
			p := step*e.GlobalBatch + i
			got.Rows = append(got.Rows, rows[p%e.Rows])
			got.Valid = append(got.Valid, p < e.Rows)
		}
		out = append(out, got)
	}
	return out
}

// readAll drains a cursor with a buffer of the given number of runs, and with varying limits on positions.
func readAll(t *testing.T, e Epoch, s Share, buffer int) []uint64 {
	t.Helper()
	return readWithin(t, e, s, 0, e.Rows, buffer)
}

// readWithin is readAll restricted to rows [lo, hi).
func readWithin(t *testing.T, e Epoch, s Share, lo, hi uint64, buffer int) []uint64 {
	t.Helper()
	c, err := NewCursor(e, s)
	if err != nil {
		t.Fatalf("%+v %+v: %v", e, s, err)
	}
	c.Within(lo, hi)
	all, dst, positions := []uint64{}, make([]Run, buffer), uint64(0)
	for most := uint64(buffer); ; most = most%1000 + 7 {
		n, passed := c.Next(dst, most)
		positions += passed
		if passed > most || passed == 0 && n > 0 {
			t.Fatalf("%+v %+v: passed %d positions of at most %d, %d runs", e, s, passed, most, n)
		}
		if passed == 0 {
			break
		}
		for _, r := range dst[:n] {
			if r.Rows == 0 {
				t.Fatalf("%+v %+v: a run without rows", e, s)
			}
			for i := range r.Rows {
				all = append(all, lo+r.First+i)
			}
		}
	}
	if want := e.Count(s); positions != want {
		t.Fatalf("%+v %+v: passed %d positions of %d", e, s, positions, want)
	}
	return all
}

func flatten(steps []rankStep) []uint64 {
	all := []uint64{}
	for _, s := range steps {
		all = append(all, s.Rows...)
	}
	return all
}

func randomEpoch(rng *rand.Rand) (Epoch, Share) {
	sizes := []uint64{0, 1, 2, 3, 7, 31, 97, 211, 1 + rng.Uint64N(300)}
	e := Epoch{
		Rows: sizes[rng.IntN(len(sizes))], Seed: rng.Uint64(), Number: rng.Uint64N(5), Shuffle: rng.IntN(4) > 0,
		Clump: 1 + rng.Uint64N(12), GlobalBatch: 1 + rng.Uint64N(40), Tail: []Tail{Drop, Pad, Keep}[rng.IntN(3)],
	}
	switch rng.IntN(10) {
	case 0:
		e.Clump = 1
	case 1:
		e.Clump = e.Rows + 1 + rng.Uint64N(5)
	case 2:
		e.GlobalBatch = e.Rows + 1 + rng.Uint64N(700)
	}
	if e.Shuffle && rng.IntN(3) == 0 {
		e.Window = 1 + rng.Uint64N(1+2*e.Rows/e.Clump)
	}
	s := Share{World: 1 + rng.Uint64N(12), Workers: 1 + rng.Uint64N(4), StartStep: rng.Uint64N(6)}
	if rng.IntN(5) == 0 {
		s.World = e.GlobalBatch + 1 + rng.Uint64N(20)
	}
	s.Rank, s.Worker = rng.Uint64N(s.World), rng.Uint64N(s.Workers)
	return e, s
}

func TestEpochEqualsPlainReference(t *testing.T) {
	rng := seedtest.New(t)
	for range 5000 {
		e, s := randomEpoch(rng)
		want := slowRank(t, e, s)
		if diff := cmp.Diff(flatten(want), readAll(t, e, s, 1+rng.IntN(60))); diff != "" {
			t.Fatalf("%+v %+v (-want +got):\n%s", e, s, diff)
		}
		if got := e.Count(s); got != uint64(len(flatten(want))) {
			t.Fatalf("%+v %+v: Count = %d, want %d", e, s, got, len(flatten(want)))
		}
	}
}

// TestLongRunsOfClumps covers epochs with more clumps than the cursor's table of clumps, and the short clump.
func TestLongRunsOfClumps(t *testing.T) {
	rng := seedtest.New(t)
	for range 60 {
		e := Epoch{Rows: 2000 + rng.Uint64N(3000), Seed: rng.Uint64(), Shuffle: true, Clump: 1 + rng.Uint64N(9),
			GlobalBatch: 1000 + rng.Uint64N(9000), Tail: Pad, Window: rng.Uint64N(400)}
		s := Share{World: 1, Workers: 1}
		if diff := cmp.Diff(flatten(slowRank(t, e, s)), readAll(t, e, s, 1+rng.IntN(5000))); diff != "" {
			t.Fatalf("%+v (-want +got):\n%s", e, diff)
		}
	}
}

// TestStartStepResumes checks that the rows from step s on are the tail of the rows from step 0 on.
func TestStartStepResumes(t *testing.T) {
	e := Epoch{Rows: 1003, Seed: 3, Shuffle: true, Clump: 4, GlobalBatch: 50, Tail: Keep}
	whole := readAll(t, e, Share{Rank: 1, World: 3, Workers: 1}, 100)
	for start := range e.Steps() + 2 {
		s := Share{Rank: 1, World: 3, Workers: 1, StartStep: start}
		got := readAll(t, e, s, 100)
		if diff := cmp.Diff(whole[len(whole)-len(got):], got); diff != "" || uint64(len(got)) != e.Count(s) {
			t.Errorf("start step %d (-want +got):\n%s", start, diff)
		}
	}
}

// TestWithin checks that the rows of a share that several nodes send make up the share, with each row at its position among its
// node's rows.
func TestWithin(t *testing.T) {
	rng := seedtest.New(t)
	for range 2000 {
		e, s := randomEpoch(rng)
		lo := rng.Uint64N(e.Rows + 1)
		hi := lo + rng.Uint64N(e.Rows-lo+1)
		want := []uint64{}
		for _, row := range flatten(slowRank(t, e, s)) {
			if row >= lo && row < hi {
				want = append(want, row)
			}
		}
		if diff := cmp.Diff(want, readWithin(t, e, s, lo, hi, 1+rng.IntN(60))); diff != "" {
			t.Fatalf("%+v %+v, rows [%d, %d) (-want +got):\n%s", e, s, lo, hi, diff)
		}
	}
}

func TestSteps(t *testing.T) {
	tests := []struct {
		tail                  Tail
		rows, batch           uint64
		steps, lastAt, lastOf uint64
	}{
		{Drop, 9, 4, 2, 4, 4}, {Keep, 9, 4, 3, 8, 1}, {Pad, 9, 4, 3, 8, 4},
		{Drop, 3, 4, 0, 0, 0}, {Keep, 3, 4, 1, 0, 3}, {Pad, 3, 4, 1, 0, 4},
		{Drop, 0, 4, 0, 0, 0}, {Keep, 0, 4, 0, 0, 0}, {Pad, 0, 4, 0, 0, 0},
		{Drop, 8, 4, 2, 4, 4}, {Keep, 8, 4, 2, 4, 4}, {Pad, 8, 4, 2, 4, 4},
		{Pad, limit - 1, limit - 2, 2, limit - 2, limit - 2},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%s %d by %d", tt.tail, tt.rows, tt.batch), func(t *testing.T) {
			e := Epoch{Rows: tt.rows, GlobalBatch: tt.batch, Tail: tt.tail}
			first, size := e.Step(e.Steps() - 1)
			if e.Steps() != tt.steps || first != tt.lastAt || size != tt.lastOf {
				t.Errorf("%d steps, last %d+%d: want %d, %d+%d", e.Steps(), first, size, tt.steps, tt.lastAt, tt.lastOf)
			}
			if _, size := e.Step(tt.steps); size != 0 {
				t.Errorf("the step after the last has %d positions", size)
			}
		})
	}
}

// TestCountNearTheLimit compares Count with sums over all ranks and workers, which must add up to the epoch.
func TestCountNearTheLimit(t *testing.T) {
	tests := []struct {
		name                               string
		rows, batch, world, workers, start uint64
	}{
		{"largest epoch in steps of one", limit - 1, 1, 3, 4, 0},
		{"largest epoch in one step", limit - 1, limit - 1, 5, 2, 0},
		{"two steps, the second short", limit - 1, limit/2 + 7, 7, 3, 0},
		{"more workers than steps", limit - 1, limit / 3, 2, 11, 0},
		{"late start", limit - 1, 1000, 4, 3, (limit - 1) / 1000},
	}
	for _, tt := range tests {
		for _, tail := range []Tail{Drop, Pad, Keep} {
			t.Run(tt.name+" "+string(tail), func(t *testing.T) {
				e := Epoch{Rows: tt.rows, GlobalBatch: tt.batch, Tail: tail}
				var sum, want big.Int
				for rank := range tt.world {
					for worker := range tt.workers {
						s := Share{Rank: rank, World: tt.world, Worker: worker, Workers: tt.workers, StartStep: tt.start}
						sum.Add(&sum, new(big.Int).SetUint64(e.Count(s)))
					}
				}
				if steps := e.Steps(); steps > tt.start {
					last, size := e.Step(steps - 1)
					want.SetUint64(last + size - tt.start*tt.batch)
				}
				if sum.Cmp(&want) != 0 {
					t.Errorf("the shares hold %s positions, want %s", &sum, &want)
				}
			})
		}
	}
}

// TestEmptySharesOfManySteps would not finish if the cursor visited every step of an empty share.
func TestEmptySharesOfManySteps(t *testing.T) {
	e := Epoch{Rows: limit - 1, GlobalBatch: 2, Tail: Keep}
	s := Share{Rank: 0, World: 3, Workers: 1}
	if got := readAll(t, e, s, 8); len(got) != 0 || e.Count(s) != 0 {
		t.Errorf("rows %v, Count %d: want none", got, e.Count(s))
	}
	s.Rank, s.Worker, s.Workers = 2, 0, limit-1
	if diff := cmp.Diff([]uint64{1}, readAll(t, e, s, 8)); diff != "" {
		t.Error(diff)
	}
}

func TestSecondHalfOfTheLargestEpoch(t *testing.T) {
	e := Epoch{Rows: limit - 1, Shuffle: true, Clump: limit / 2, GlobalBatch: limit - 2, Tail: Pad}
	s := Share{Rank: limit - 2, World: limit - 1, Workers: 1, StartStep: 1}
	c, err := NewCursor(e, s)
	if err != nil {
		t.Fatal(err)
	}
	dst := make([]Run, 4)
	if n, rows := c.Next(dst, 4); n != 1 || rows != 1 || e.Count(s) != 1 || dst[0].First >= e.Rows {
		t.Errorf("%d rows %v, Count %d: want one row", rows, dst[:n], e.Count(s))
	}
}

func TestShard(t *testing.T) {
	rng := seedtest.New(t)
	values := []uint64{1, 2, 3, 1<<62 - 1, 1 << 62, 1<<63 - 1, 1 << 63, math.MaxUint64 - 1, math.MaxUint64}
	pick := func() uint64 {
		if rng.IntN(2) == 0 {
			return values[rng.IntN(len(values))]
		}
		return 1 + rng.Uint64N(math.MaxUint64)>>rng.UintN(64)
	}
	exact := func(index, total, n uint64) uint64 {
		product := new(big.Int).Mul(new(big.Int).SetUint64(index), new(big.Int).SetUint64(n))
		return product.Div(product, new(big.Int).SetUint64(total)).Uint64()
	}
	for range 20000 {
		n, total := pick()-1, pick()
		index := rng.Uint64N(total)
		if rng.IntN(8) == 0 {
			index = total - 1
		}
		lo, hi := Shard(index, total, n)
		if lo != exact(index, total, n) || hi != exact(index+1, total, n) {
			t.Fatalf("Shard(%d, %d, %d) = [%d, %d), want [%d, %d)", index, total, n, lo, hi,
				exact(index, total, n), exact(index+1, total, n))
		}
	}
	for _, total := range []uint64{0, 3} {
		if lo, hi := Shard(3, total, 9); lo != 9 || hi != 9 {
			t.Errorf("Shard(3, %d, 9) = [%d, %d), want the empty end", total, lo, hi)
		}
	}
}

func TestValidate(t *testing.T) {
	epoch := Epoch{Rows: 9, Shuffle: true, Clump: 1, GlobalBatch: 4, Tail: Keep}
	share := Share{World: 2, Workers: 1}
	tests := []struct {
		name   string
		change func(e *Epoch, s *Share)
		want   []string // parts of the error message; empty if valid
	}{
		{"good", func(*Epoch, *Share) {}, nil},
		{"clump is not read without shuffle", func(e *Epoch, _ *Share) { e.Shuffle, e.Clump = false, 0 }, nil},
		{"start beyond the end", func(_ *Epoch, s *Share) { s.StartStep = math.MaxUint64 }, nil},
		{"too many rows", func(e *Epoch, _ *Share) { e.Rows = limit }, []string{"rows = 4611686018427387904", "2^62"}},
		{"no clump", func(e *Epoch, _ *Share) { e.Clump = 0 }, []string{"clump = 0", "1 <= clump"}},
		{"large clump", func(e *Epoch, _ *Share) { e.Clump = limit }, []string{"clump = 46", "2^62"}},
		{"large window", func(e *Epoch, _ *Share) { e.Window = limit }, []string{"window = 46", "2^62"}},
		{"window is not read without shuffle", func(e *Epoch, _ *Share) { e.Shuffle, e.Window = false, limit }, nil},
		{"no batch", func(e *Epoch, _ *Share) { e.GlobalBatch = 0 }, []string{"global_batch = 0", "1 <= global_batch"}},
		{"large batch", func(e *Epoch, _ *Share) { e.GlobalBatch = limit }, []string{"global_batch = 46", "2^62"}},
		{"no tail", func(e *Epoch, _ *Share) { e.Tail = "" }, []string{`tail = ""`, `"drop", "pad" or "keep"`}},
		{"other tail", func(e *Epoch, _ *Share) { e.Tail = "Keep" }, []string{`tail = "Keep"`}},
		{"no world", func(_ *Epoch, s *Share) { s.World = 0 }, []string{"world = 0", "1 <= world"}},
		{"large world", func(_ *Epoch, s *Share) { s.World = limit }, []string{"world = 46", "2^62"}},
		{"rank is world", func(_ *Epoch, s *Share) { s.Rank = 2 }, []string{"rank = 2", "world = 2"}},
		{"no workers", func(_ *Epoch, s *Share) { s.Workers = 0 }, []string{"workers = 0"}},
		{"large workers", func(_ *Epoch, s *Share) { s.Workers = limit }, []string{"workers = 46"}},
		{"worker is workers", func(_ *Epoch, s *Share) { s.Worker = 1 }, []string{"worker = 1", "workers = 1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, s := epoch, share
			tt.change(&e, &s)
			_, err := NewCursor(e, s)
			if (err != nil) != (tt.want != nil) {
				t.Fatalf("error %v, want one: %t", err, tt.want != nil)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %q", err, part)
				}
			}
			if err != nil && e.Count(s) != 0 {
				t.Errorf("Count of an invalid share is %d", e.Count(s))
			}
		})
	}
	if (Epoch{Rows: 5}).Steps() != 0 {
		t.Error("an epoch without a batch has steps")
	}
}

func BenchmarkCursor(b *testing.B) {
	for _, order := range [][2]uint64{{1, 0}, {2, 0}, {8, 0}, {64, 0}, {1, 100_000}, {512, 200}} {
		for _, world := range []uint64{1, 256} {
			clump, window := order[0], order[1]
			b.Run(fmt.Sprintf("clump=%d/window=%d/world=%d", clump, window, world), func(b *testing.B) {
				e := Epoch{Rows: 1 << 50, Shuffle: true, Clump: clump, GlobalBatch: 1024, Tail: Drop, Window: window}
				dst := make([]Run, 512)
				c, err := NewCursor(e, Share{World: world, Workers: 1})
				if err != nil {
					b.Fatal(err)
				}
				perSecond(b, len(dst), func(int) {
					if _, passed := c.Next(dst, 512); passed != 512 {
						b.Fatal("the epoch has ended")
					}
				})
			})
		}
	}
}
