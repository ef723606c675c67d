// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"testing"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// exact is a backing in memory that reads no byte beside what it is asked for.
type exact struct {
	chunks []([]byte)
	whole  int // number of chunks read whole
	ranges int // number of bytes read in ranges
}

func (e *exact) ReadChunk(number int, memory []byte) error {
	e.whole++
	copy(memory, e.chunks[number])
	return nil
}

func (e *exact) ReadRanges(number int, memory []byte, ranges []Range) (read int64, err error) {
	for _, r := range ranges {
		read += int64(copy(memory[r.From:r.To], e.chunks[number][r.From:r.To]))
	}
	e.ranges += int(read)
	return read, nil
}

// TestFramesReadRanges compares rows that are cut from chunks of which only these rows were read with the same rows of whole chunks.
func TestFramesReadRanges(t *testing.T) {
	whole, ranges := 0, 0
	for _, seed := range seedtest.Seeds(t, 150) {
		d := newDice(t, seed)
		s := d.schema()
		l, err := NewLayout(s)
		if err != nil {
			t.Fatal(err)
		}
		budget := offheap.NewBudget(1 << 40)
		arena := offheap.NewArena(budget).Paged()
		b := NewBuilder(l, arena, 1<<(8+d.IntN(12)))
		for range 1 + d.IntN(4) {
			if err := b.Append(d.batch(t, s, d.IntN(300)), nil); err != nil {
				t.Fatal(err)
			}
		}
		st := store{budget: budget, arena: arena, layout: l}
		st.finish(t, b)
		b.Close()
		e := &exact{}
		plain, err := st.rows.NewFrame(budget)
		if err != nil {
			t.Fatal(err)
		}
		apart, err := st.rows.NewFrame(budget)
		if err != nil {
			t.Fatal(err)
		}
		apart.perRun = 0
		for i, c := range st.rows.chunks {
			groups := [][]Run32{d.runs(uint32(c.rows)), d.runs(uint32(c.rows))}
			e.chunks = append(e.chunks, bytes.Clone(c.memory))
			var want []*Chunk
			if err := plain.Load(i); err != nil {
				t.Fatal(err)
			}
			for _, g := range groups {
				want = append(want, cut(t, plain, arena, g))
			}
			c.Store(e, i)
			c.Free()
			if err := apart.grow(len(c.memory)); err != nil {
				t.Fatal(err)
			}
			for j := range apart.memory {
				apart.memory[j] = 0xa5 // what must not be used
			}
			if err := apart.Load(i, groups...); err != nil {
				t.Fatal(err)
			}
			for j, g := range groups {
				if got := cut(t, apart, arena, g); !bytes.Equal(got.memory, want[j].memory) {
					t.Fatalf("seed %d, chunk %d of %v: rows %v differ", seed, i, s, g)
				}
			}
		}
		whole, ranges = whole+e.whole, ranges+e.ranges
		plain.Close()
		apart.Close()
	}
	if whole == 0 || ranges == 0 {
		t.Errorf("%d chunks were read whole, and %d bytes in ranges: both ways should be taken", whole, ranges)
	}
}

func cut(t *testing.T, f *Frame, a *offheap.Arena, runs []Run32) *Chunk {
	t.Helper()
	c, err := f.Cut(a, runs)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// runs are random runs of n rows, in any order, which may overlap.
func (d dice) runs(n uint32) (runs []Run32) {
	for range 1 + d.IntN(4) {
		first := d.Uint32N(n)
		runs = append(runs, Run32{first, 1 + d.Uint32N(min(n-first, 5))})
	}
	return runs
}
