// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// FuzzRows compares Range and Gather over random schemas and rows with arrow-go's slice, concatenate and take. A plain test run uses
// the first seeds, -fuzz any others.
func FuzzRows(f *testing.F) {
	for seed := range seedtest.Cases[uint64](20, 50) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		d := newDice(t, seed)
		s := d.schema()
		var batches []arrow.RecordBatch
		for range 1 + d.IntN(4) {
			batches = append(batches, d.batch(t, s, d.IntN(300)))
		}
		st := load(t, s, 1<<(8+d.IntN(12)), batches...)
		want := concat(t, s, batches)
		if st.rows.Len() != want.NumRows() {
			t.Fatalf("%d rows, want %d", st.rows.Len(), want.NumRows())
		}
		for range 5 {
			p := d.projection(t, st.layout)
			lo := d.Int64N(want.NumRows() + 1)
			hi := lo + d.Int64N(want.NumRows()-lo+1)
			got := st.readRange(t, p, lo, hi)
			equalBatches(t, fmt.Sprintf("range [%d, %d)", lo, hi), got, project(want, p).NewSlice(lo, hi))
			rows := d.picks(want.NumRows())
			got = st.readRows(t, p, rows, 1<<(6+d.IntN(14)))
			equalBatches(t, fmt.Sprintf("gather %d", rows), got, take(t, project(want, p), rows))
		}
	})
}

func (d dice) projection(t *testing.T, l *Layout) *Projection {
	t.Helper()
	var columns []int
	for _, c := range d.Perm(2 * len(l.columns))[:d.IntN(2*len(l.columns)+1)] {
		if l.root(c) != nil {
			columns = append(columns, c)
		}
	}
	if d.IntN(3) == 0 {
		return l.All()
	}
	p, err := l.Project(columns)
	if err != nil {
		t.Fatalf("project %d: %v", columns, err)
	}
	return p
}

// picks returns random rows in clumps.
func (d dice) picks(n int64) []int64 {
	var rows []int64
	if n == 0 {
		return nil
	}
	clump := 1 + d.Int64N(20)
	for range d.IntN(60) {
		at := d.Int64N(n)
		for r := at; r < min(n, at+clump); r++ {
			rows = append(rows, r)
		}
	}
	return rows
}
