// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

func fixed(width int) arrow.DataType { return &arrow.FixedSizeBinaryType{ByteWidth: width} }

func TestFindStrips(t *testing.T) {
	i64, text := arrow.PrimitiveTypes.Int64, arrow.BinaryTypes.String
	for _, c := range []struct {
		name  string
		types []arrow.DataType
		want  string // columns and bytes of a row, for each strip
	}{
		{"one column", []arrow.DataType{i64, text}, ""},
		{"others between", []arrow.DataType{i64, text, arrow.PrimitiveTypes.Int8, arrow.FixedWidthTypes.Boolean}, "[0 2]:9 "},
		{"a full row", []arrow.DataType{fixed(16), fixed(16), fixed(16), fixed(16)}, "[0 1 2 3]:64 "},
		{"two strips", []arrow.DataType{fixed(16), fixed(16), fixed(16), fixed(15), i64, i64}, "[0 1 2 3]:63 [4 5]:16 "},
		{"one is left", []arrow.DataType{fixed(16), fixed(16), fixed(16), fixed(16), i64}, "[0 1 2 3]:64 "},
		{"too wide or nothing", []arrow.DataType{fixed(17), i64, fixed(0), &arrow.Decimal256Type{Precision: 40}, i64}, "[1 4]:16 "},
		{"nested", []arrow.DataType{list(i64), arrow.StructOf(nullable("x", i64), nullable("y", i64)), i64}, ""},
	} {
		var fields []arrow.Field
		for i, dt := range c.types {
			fields = append(fields, nullable(fmt.Sprint("c", i), dt))
		}
		l, err := NewLayout(arrow.NewSchema(fields, nil))
		if err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		for _, s := range l.strips {
			var columns []int
			for i, column := range l.columns {
				if column.root.strip == s {
					columns = append(columns, i)
				}
			}
			fmt.Fprintf(&got, "%d:%d ", columns, s.stride)
		}
		if got.String() != c.want {
			t.Errorf("%s: strips %q, want %q", c.name, got.String(), c.want)
		}
	}
}

// TestStripsEqualTake makes strips of random columns, with other columns between them: rows, runs of rows and ranges must equal the
// result of arrow-go's take.
func TestStripsEqualTake(t *testing.T) {
	for _, seed := range seedtest.Seeds(t, 12) {
		d := newDice(t, seed)
		fields := make([]arrow.Field, 2+d.IntN(20))
		for i := range fields {
			dt := []arrow.DataType{
				arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Uint16, arrow.PrimitiveTypes.Float32, arrow.PrimitiveTypes.Int64,
				&arrow.Decimal128Type{Precision: 30, Scale: 2}, fixed(1 + d.IntN(20)), d.leaf(),
			}[d.IntN(7)]
			fields[i] = nullable(fmt.Sprint("c", i), dt)
		}
		s := arrow.NewSchema(fields, nil)
		batches := []arrow.RecordBatch{d.batch(t, s, d.IntN(700)), d.batch(t, s, 1+d.IntN(3))}
		st, want := load(t, s, 1<<(10+d.IntN(8)), batches...), concat(t, s, batches)
		n := want.NumRows()
		for range 4 {
			p := d.projection(t, st.layout)
			lo := d.Int64N(n)
			hi := lo + 1 + d.Int64N(n-lo)
			rows := d.picks(n)
			for row := lo; row < hi; row++ { // a run, possibly longer than a block
				rows = append(rows, row)
			}
			equalBatches(t, fmt.Sprintf("seed %d: rows %d", seed, rows), st.readRows(t, p, rows, 1<<(8+d.IntN(12))), take(t, project(want, p), rows))
			equalBatches(t, fmt.Sprintf("seed %d: range [%d, %d)", seed, lo, hi), st.readRange(t, p, lo, hi), project(want, p).NewSlice(lo, hi))
		}
	}
}

// TestRangeCuts checks that Range divides a chunk into messages of about equal length.
func TestRangeCuts(t *testing.T) {
	batch := numbers(t, 0, 200_000) // about 37 bytes per row
	st := load(t, batch.Schema(), 8<<20, batch)
	var rows []int
	for m, err := range st.rows.Range(st.layout.All(), 0, st.rows.Len()) {
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, m.Rows)
		if m.BodyLen < usualBytes/2 || m.BodyLen > 2*usualBytes {
			t.Errorf("a message of %d bytes", m.BodyLen)
		}
		m.Release()
	}
	if len(rows) < 5 {
		t.Errorf("messages of %d rows", rows)
	}
}
