// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/bitutil"

	"github.com/kubeflow/datacache/cacheserver/offheap"
)

// FuzzKept appends random rows with random bits: the builder must keep the rows whose bits are set. A plain test run uses the first
// seeds, -fuzz any others.
func FuzzKept(f *testing.F) {
	for seed := range uint64(50) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		d := newDice(t, seed)
		s := d.schema()
		budget := offheap.NewBudget(1 << 40)
		l, err := NewLayout(s)
		if err != nil {
			t.Fatal(err)
		}
		st := store{budget: budget, layout: l, arena: offheap.NewArena(budget)}
		b := NewBuilder(l, st.arena, 1<<(8+d.IntN(12)))
		defer b.Close()
		var want []arrow.RecordBatch
		for range 1 + d.IntN(6) {
			batch := d.batch(t, s, 1+d.IntN(300))
			keep, rows := d.keep(int(batch.NumRows()))
			if err := b.Append(batch, keep); err != nil {
				t.Fatal(err)
			}
			want = append(want, take(t, batch, rows))
		}
		st.finish(t, b)
		equalBatches(t, "kept", st.readRange(t, l.All(), 0, st.rows.Len()), concat(t, s, want))
	})
}

// keep returns a random bitmap for n rows, and the rows whose bits are set; a nil bitmap means all.
func (d dice) keep(n int) (keep []byte, rows []int64) {
	percent := []int{0, 1, 50, 99, 100}[d.IntN(5)]
	run := 1 + d.IntN(20)
	if percent < 100 {
		keep = make([]byte, (n+7)/8)
	}
	one := false
	for i := range n {
		if i%run == 0 {
			one = d.IntN(100) < percent
		}
		if one {
			rows = append(rows, int64(i))
		}
		if one && keep != nil {
			bitutil.SetBit(keep, i)
		}
	}
	return keep, rows
}

func TestTooFewBitsToKeep(t *testing.T) {
	d := newDice(t, 1)
	s := d.schema()
	l, err := NewLayout(s)
	if err != nil {
		t.Fatal(err)
	}
	a := offheap.NewArena(offheap.NewBudget(1 << 30))
	defer a.Release()
	b := NewBuilder(l, a, 0)
	defer b.Close()
	if err := b.Append(d.batch(t, s, 9), []byte{0xff}); err == nil {
		t.Error("8 bits for 9 rows were taken")
	}
}
