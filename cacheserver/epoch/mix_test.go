// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package epoch

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// drawn is what a mixture draws at one position.
type drawn struct{ part, row uint64 }

// UnmarshalJSON reads [part, row].
func (d *drawn) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&d.part, &d.row})
}

// slowMix is a reference implementation of the law of mixtures (docs/order.md), draw by draw.
type slowMix struct {
	t    testing.TB
	e    Epoch
	m    Mix
	rows map[[2]uint64][]uint64 // the sequence of rows by part and its epoch
}

func newSlowMix(t testing.TB, e Epoch, m Mix) slowMix {
	return slowMix{t: t, e: e, m: m, rows: map[[2]uint64][]uint64{}}
}

// sequence lists the rows of an epoch of a part.
func (s slowMix) sequence(part, number uint64) []uint64 {
	key := [2]uint64{part, number}
	if s.rows[key] == nil {
		own := Epoch{Rows: s.m.Parts[part].Rows, Seed: mix(s.e.Seed + golden*(part+2)), Number: number, Shuffle: s.e.Shuffle, Clump: s.e.Clump, Window: s.e.Window}
		s.rows[key] = slowWindowed(s.t, own)
	}
	return s.rows[key]
}

// draw returns what draw number g is.
func (s slowMix) draw(g uint64) drawn {
	e, m := s.e, s.m
	unit := uint64(1)
	if m.Unit == BatchUnit {
		unit = e.GlobalBatch
	}
	before, phase := make([]uint64, len(m.Parts)), 0
	total := func() (sum uint64) {
		for _, p := range m.Parts {
			sum += p.Weights[phase]
		}
		return sum
	}
	for phase < len(m.Phases) && g >= m.Phases[phase] {
		for i, p := range m.Parts {
			before[i] += m.Phases[phase] / total() * p.Weights[phase]
		}
		g -= m.Phases[phase]
		phase++
	}
	number, within := g/unit, g%unit
	perm := mustPermutation(s.t, total(), mix(e.Seed+1+uint64(phase)), number/total())
	slot, part := perm.At(number%total()), uint64(0)
	for slot >= m.Parts[part].Weights[phase] {
		slot -= m.Parts[part].Weights[phase]
		part++
	}
	p := m.Parts[part]
	k := before[part] + (number/total()*p.Weights[phase]+slot)*unit + within
	return drawn{part, s.sequence(part, k/p.Rows)[k%p.Rows]}
}

// slowShare lists the rows of a part in a share, position by position.
func slowShare(t testing.TB, e Epoch, m Mix, s Share) []uint64 {
	rows, slow := []uint64{}, newSlowMix(t, e, m)
	for step := s.StartStep; step < e.Steps(); step++ {
		if step%s.Workers != s.Worker {
			continue
		}
		first, size := e.Step(step)
		lo, hi := Shard(s.Rank, s.World, size)
		for p := first + lo; p < first+hi; p++ {
			if d := slow.draw(e.Number*e.Rows + p%e.Rows); d.part == m.Part {
				rows = append(rows, d.row)
			}
		}
	}
	return rows
}

// readMix drains a cursor over rows [lo, hi) of the part with a buffer of the given number of runs.
func readMix(t *testing.T, e Epoch, m Mix, s Share, lo, hi uint64, buffer int) []uint64 {
	t.Helper()
	c, err := NewMixCursor(e, m, s)
	if err != nil {
		t.Fatalf("%+v %+v %+v: %v", e, m, s, err)
	}
	c.Within(lo, hi)
	all, dst, positions := []uint64{}, make([]Run, buffer), uint64(0)
	for {
		n, passed := c.Next(dst, math.MaxUint64)
		if passed == 0 {
			break
		}
		positions += passed
		for _, r := range dst[:n] {
			for i := range r.Rows {
				all = append(all, lo+r.First+i)
			}
		}
	}
	if want := e.Count(s); positions != want {
		t.Fatalf("%+v %+v %+v: passed %d positions of %d", e, m, s, positions, want)
	}
	return all
}

// randomMix returns a valid mixture with small numbers.
func randomMix(rng *rand.Rand) (Epoch, Mix, Share) {
	e, s := randomEpoch(rng)
	m := Mix{Unit: []Unit{RowUnit, BatchUnit}[rng.IntN(2)], Parts: make([]Part, 1+rng.IntN(4))}
	unit := m.unit(e)
	e.Rows -= e.Rows % unit
	for i := range m.Parts {
		m.Parts[i].Rows = 1 + rng.Uint64N([]uint64{3, 20, 200}[rng.IntN(3)])
		m.Parts[i].Weights = []uint64{1 + rng.Uint64N(9)}
	}
	if rng.IntN(2) == 0 { // the other parts are sparse
		m.Parts[0].Weights[0] = sparseFrom * (1 + rng.Uint64N(20))
	}
	for range rng.IntN(3) {
		var total uint64
		for i := range m.Parts {
			total += m.Parts[i].Weights[len(m.Phases)]
			m.Parts[i].Weights = append(m.Parts[i].Weights, rng.Uint64N(6)+1/uint64(i+1))
		}
		m.Phases = append(m.Phases, (1+rng.Uint64N(9))*total*unit)
	}
	m.Part = rng.Uint64N(uint64(len(m.Parts)))
	return e, m, s
}

func TestMixEqualsPlainReference(t *testing.T) {
	rng := seedtest.New(t)
	for range 400 {
		e, m, s := randomMix(rng)
		rows := m.Parts[m.Part].Rows
		lo := rng.Uint64N(rows + 1)
		hi := lo + rng.Uint64N(rows-lo+1)
		want, within := slowShare(t, e, m, s), []uint64{}
		for _, row := range want {
			if row >= lo && row < hi {
				within = append(within, row)
			}
		}
		if diff := cmp.Diff(want, readMix(t, e, m, s, 0, rows, 1+rng.IntN(600))); diff != "" {
			t.Fatalf("%+v %+v %+v (-want +got):\n%s", e, m, s, diff)
		}
		if diff := cmp.Diff(within, readMix(t, e, m, s, lo, hi, 1+rng.IntN(60))); diff != "" {
			t.Fatalf("%+v %+v %+v, rows [%d, %d) (-want +got):\n%s", e, m, s, lo, hi, diff)
		}
	}
}

// TestSparsePartEqualsPlainReference reads a part with few of the draws, whose rows are found by the inverse of the permutation.
func TestSparsePartEqualsPlainReference(t *testing.T) {
	rng := seedtest.New(t)
	rows := 0
	for range seedtest.Cases(200, 500) {
		m := Mix{
			Part: 1, Unit: []Unit{RowUnit, BatchUnit}[rng.IntN(2)],
			Parts: []Part{{5, []uint64{sparseFrom + rng.Uint64N(100), 3}}, {1 + rng.Uint64N(9), []uint64{1 + rng.Uint64N(2), 0}}, {7, []uint64{3 * sparseFrom, 1}}},
		}
		e := Epoch{
			GlobalBatch: 1 + rng.Uint64N(90), Seed: rng.Uint64(), Number: rng.Uint64N(4), Shuffle: rng.IntN(4) > 0, Clump: 1 + rng.Uint64N(3),
			Tail: []Tail{Drop, Pad, Keep}[rng.IntN(3)],
		}
		if e.Shuffle {
			e.Window = rng.Uint64N(4)
		}
		e.Rows = 1 + rng.Uint64N(800)
		e.Rows = max(e.Rows/m.unit(e), 1) * m.unit(e)
		m.Phases = []uint64{(1 + rng.Uint64N(3)) * (m.Parts[0].Weights[0] + m.Parts[1].Weights[0] + m.Parts[2].Weights[0]) * m.unit(e)}
		s := Share{World: 1 + rng.Uint64N(3), Workers: 1 + rng.Uint64N(3), StartStep: rng.Uint64N(3)}
		s.Rank, s.Worker = rng.Uint64N(s.World), rng.Uint64N(s.Workers)
		want := slowShare(t, e, m, s)
		rows += len(want)
		if diff := cmp.Diff(want, readMix(t, e, m, s, 0, m.Parts[1].Rows, 1+rng.IntN(20))); diff != "" {
			t.Fatalf("%+v %+v %+v (-want +got):\n%s", e, m, s, diff)
		}
	}
	if rows < 20 {
		t.Errorf("%d rows, want about a hundred", rows)
	}
}

// TestLawOfMixtures checks over many mixture epochs, with numbers from the reference, that every block of T draws holds exactly w_i
// draws of part i, and that each part's rows come in whole epochs.
func TestLawOfMixtures(t *testing.T) {
	rng := seedtest.New(t)
	for range seedtest.Cases(20, 60) {
		e, m, _ := randomMix(rng)
		if m.unit(e) > 12 {
			m.Unit = RowUnit // phases stay multiples of the sums of weights
		}
		slow, unit, counts, draw := newSlowMix(t, e, m), m.unit(e), make([]map[uint64]uint64, len(m.Parts)), uint64(0)
		for i := range counts {
			counts[i] = map[uint64]uint64{}
		}
		taken := make([]uint64, len(m.Parts))
		for phase := range len(m.Phases) + 1 {
			var total uint64
			for _, p := range m.Parts {
				total += p.Weights[phase]
			}
			blocks := uint64(5)
			if phase < len(m.Phases) {
				blocks = m.Phases[phase] / (total * unit)
			}
			for range blocks {
				inBlock := make([]uint64, len(m.Parts))
				for range total * unit {
					d := slow.draw(draw)
					draw++
					inBlock[d.part]++
					counts[d.part][d.row]++
				}
				for i, n := range inBlock {
					if n != m.Parts[i].Weights[phase]*unit {
						t.Fatalf("%+v %+v: a block of phase %d has %d draws of part %d", e, m, phase, n, i)
					}
					taken[i] += n
				}
			}
		}
		checkWholeEpochs(t, m, taken, counts)
	}
}

// checkWholeEpochs checks that no row was drawn twice more than another: each part ends an epoch before it repeats a row. In a block
// of draws a part's rows may come in another order than they are numbered, so it is checked where blocks end.
func checkWholeEpochs(t *testing.T, m Mix, taken []uint64, counts []map[uint64]uint64) {
	t.Helper()
	for i, part := range m.Parts {
		whole, rest := taken[i]/part.Rows, uint64(0)
		for row := range part.Rows {
			switch counts[i][row] {
			case whole:
			case whole + 1:
				rest++
			default:
				t.Fatalf("%+v: row %d of part %d is drawn %d times in %d draws", m, row, i, counts[i][row], taken[i])
			}
		}
		if rest != taken[i]%part.Rows {
			t.Fatalf("%+v: %d rows of part %d are drawn once more than %d times, want %d", m, rest, i, whole, taken[i]%part.Rows)
		}
	}
}

// mixVector is a case of test/golden/mix_vectors.json, which the Python tests read as well.
type mixVector struct {
	Parts                             []Part
	Phases                            []uint64
	Unit                              Unit
	Length, Seed, Epoch, Clump, World uint64
	Window                            uint64
	GlobalBatch                       uint64 `json:"global_batch"`
	StartStep                         uint64 `json:"start_step"`
	Shuffle                           bool
	Tail                              Tail
	Ranks                             [][]mixStep
}

type mixStep struct {
	draws []drawn
}

// UnmarshalJSON reads [step, [[part, row]...], [valid...]].
func (s *mixStep) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{new(uint64), &s.draws, new([]bool)})
}

func TestGoldenMixtures(t *testing.T) {
	text, err := os.ReadFile("../../test/golden/mix_vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Cases []mixVector }
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) < 5 {
		t.Fatalf("%d cases: is this the right file?", len(file.Cases))
	}
	for i, v := range file.Cases {
		e := Epoch{Rows: v.Length, Seed: v.Seed, Number: v.Epoch, Shuffle: v.Shuffle, Clump: v.Clump, Window: v.Window, GlobalBatch: v.GlobalBatch, Tail: v.Tail}
		for rank, steps := range v.Ranks {
			for part := range v.Parts {
				t.Run(fmt.Sprintf("%d rank %d part %d", i, rank, part), func(t *testing.T) {
					want := []uint64{}
					for _, step := range steps {
						for _, d := range step.draws {
							if d.part == uint64(part) {
								want = append(want, d.row)
							}
						}
					}
					m := Mix{Part: uint64(part), Parts: v.Parts, Phases: v.Phases, Unit: v.Unit}
					s := Share{Rank: uint64(rank), World: v.World, Workers: 1, StartStep: v.StartStep}
					if diff := cmp.Diff(want, readMix(t, e, m, s, 0, v.Parts[part].Rows, 7)); diff != "" {
						t.Errorf("rows (-want +got):\n%s", diff)
					}
				})
			}
		}
	}
}

// TestEstimate compares the estimate of a part's rows with their number, which it is near to in shares of many blocks.
func TestEstimate(t *testing.T) {
	m := Mix{Part: 1, Parts: []Part{{Rows: 100, Weights: []uint64{7, 1, 1}}, {Rows: 5, Weights: []uint64{3, 0, 9}}}, Phases: []uint64{10_000, 5_000}, Unit: RowUnit}
	for _, e := range []Epoch{
		{Rows: 9_000, GlobalBatch: 100, Tail: Drop}, {Rows: 9_000, GlobalBatch: 100, Tail: Pad, Number: 1}, {Rows: 20_000, GlobalBatch: 64, Tail: Keep},
	} {
		for _, s := range []Share{{World: 1, Workers: 1}, {Rank: 2, World: 3, Workers: 1, StartStep: 7}, {Rank: 1, World: 2, Worker: 1, Workers: 2, StartStep: 1 << 40}} {
			exact := len(readMix(t, e, m, s, 0, 5, 500))
			if got := int(m.Estimate(e, s)); got < exact*8/10 || got > exact*12/10 {
				t.Errorf("%+v %+v: %d rows, estimate %d", e, s, exact, got)
			}
		}
	}
	if got := m.Estimate(Epoch{GlobalBatch: 1, Tail: Keep}, Share{World: 1, Workers: 1}); got != 0 {
		t.Errorf("estimate of an empty epoch: %d", got)
	}
}

// TestMixNearTheLimits reads the last draws there are.
func TestMixNearTheLimits(t *testing.T) {
	m := Mix{Part: 1, Parts: []Part{{Rows: limit - 1, Weights: []uint64{limit - 3}}, {Rows: 1, Weights: []uint64{2}}}, Unit: RowUnit}
	e := Epoch{Rows: 1 << 20, Number: 1<<42 - 1, Shuffle: true, Clump: 3, GlobalBatch: 1 << 10, Tail: Drop}
	s := Share{World: 1, Workers: 1, StartStep: 1<<10 - 1}
	if got := readMix(t, e, m, s, 0, 1, 64); len(got) > 2 {
		t.Errorf("a part with 2 of 2^62 draws has %d rows in a step", len(got))
	}
	e.Number++
	if _, err := NewMixCursor(e, m, s); err == nil || !strings.Contains(err.Error(), "epoch = 4398046511104: want (epoch + 1) * length <= 2^62") {
		t.Errorf("an epoch beyond the last draw: %v", err)
	}
}

func TestMixValidate(t *testing.T) {
	tests := []struct {
		name   string
		change func(e *Epoch, m *Mix)
		want   string
	}{
		{"good", func(*Epoch, *Mix) {}, ""},
		{"large length", func(e *Epoch, _ *Mix) { e.Rows = limit }, "rows = 4611686018427387904"},
		{"no clump", func(e *Epoch, _ *Mix) { e.Clump = 0 }, "clump = 0"},
		{"no unit", func(_ *Epoch, m *Mix) { m.Unit = "" }, `unit = "": want "row" or "batch"`},
		{"length of part of a batch", func(_ *Epoch, m *Mix) { m.Unit = BatchUnit }, "length = 30: want a multiple of global_batch = 4 with unit \"batch\", such as 28"},
		{"no parts", func(_ *Epoch, m *Mix) { m.Parts = nil }, "parts: 0"},
		{"part of none", func(_ *Epoch, m *Mix) { m.Part = 2 }, "part = 2: want 0 <= part < 2"},
		{"no rows", func(_ *Epoch, m *Mix) { m.Parts[1].Rows = 0 }, "parts[1].rows = 0"},
		{"many rows", func(_ *Epoch, m *Mix) { m.Parts[1].Rows = limit }, "parts[1].rows = 46"},
		{"few weights", func(_ *Epoch, m *Mix) { m.Parts[0].Weights = m.Parts[0].Weights[:1] }, "parts[0].weights: 1, want 2"},
		{"large weight", func(_ *Epoch, m *Mix) { m.Parts[0].Weights[1] = limit }, "parts[0].weights[1] = 46"},
		{"large batches", func(e *Epoch, m *Mix) { m.Unit, e.GlobalBatch, e.Rows = BatchUnit, limit/2, limit/2 }, "less than 2^62"},
		{"part of a block", func(_ *Epoch, m *Mix) { m.Phases[0] = 19 }, "phases[0] = 19: want a multiple of 10, the sum of the weights times the rows of a draw, such as 20"},
		{"few draws", func(_ *Epoch, m *Mix) { m.Part, m.Parts[1].Weights[1], m.Parts[0].Weights[1] = 1, 2000, 2000<<21 }, "weights of phase 1: 2000 of 4194306000 for parts[1]: want at least one in 1048576, or at most 1024"},
		{"few draws of another part", func(_ *Epoch, m *Mix) { m.Parts[1].Weights[1], m.Parts[0].Weights[1] = 2000, 2000<<21 }, ""},
		{"one draw in many", func(_ *Epoch, m *Mix) { m.Part, m.Parts[1].Weights[1], m.Parts[0].Weights[1] = 1, 1, 1<<40 }, ""},
		{"too long a phase", func(_ *Epoch, m *Mix) { m.Phases[0] = limit/10*10 + 10 }, "want the sum of all phases"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := Epoch{Rows: 30, Shuffle: true, Clump: 1, GlobalBatch: 4, Tail: Keep}
			m := Mix{Parts: []Part{{9, []uint64{7, 1}}, {5, []uint64{3, 9}}}, Phases: []uint64{40}, Unit: RowUnit}
			tt.change(&e, &m)
			_, err := NewMixCursor(e, m, Share{World: 1, Workers: 1})
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func BenchmarkMix(b *testing.B) {
	for _, tt := range []struct {
		name string
		mix  Mix
	}{
		{"exact per step", Mix{Parts: []Part{{1 << 40, []uint64{717}}, {1 << 30, []uint64{307}}}, Unit: RowUnit}},
		{"exact per epoch", Mix{Parts: []Part{{1 << 40, []uint64{7e11}}, {1 << 30, []uint64{3e11}}}, Unit: RowUnit}},
		{"a block of 16 draws", Mix{Parts: []Part{{1 << 40, []uint64{11}}, {1 << 30, []uint64{5}}}, Unit: RowUnit}},
		{"by batch", Mix{Parts: []Part{{1 << 40, []uint64{7}}, {1 << 30, []uint64{3}}}, Unit: BatchUnit}},
	} {
		e := Epoch{Rows: 1 << 40, Shuffle: true, Clump: 1, GlobalBatch: 1024, Tail: Drop}
		b.Run(tt.name+"/start", func(b *testing.B) {
			var runs [1]Run
			for b.Loop() {
				c, err := NewMixCursor(e, tt.mix, Share{World: 1, Workers: 1, StartStep: 1 << 29})
				if err != nil {
					b.Fatal(err)
				}
				c.Next(runs[:], 1)
			}
		})
		b.Run(tt.name+"/next", func(b *testing.B) {
			dst := make([]Run, 512)
			c, err := NewMixCursor(e, tt.mix, Share{World: 1, Workers: 1})
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
