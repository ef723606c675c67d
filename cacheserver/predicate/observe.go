// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/float16"

	"github.com/kubeflow/datacache/cacheserver/column"
)

// Observed is what the values of a column really are, to compare with Bounds that somebody states. The zero value has seen no rows.
type Observed struct {
	Rows, Nulls, NaNs int64
	Min, Max          column.Value // of the values that are neither null nor NaN, if Some is set
	Some              bool
}

// Add adds the rows of an array and of the structs that contain it. It returns false for a type whose values have no order; only the
// counts are kept then.
func (o *Observed) Add(leaf arrow.Array, parents []arrow.Array) bool {
	n := leaf.Len()
	valid := validRows(leaf, parents)
	o.Rows += int64(n)
	if valid != nil {
		o.Nulls += int64(n - bitutil.CountSetBits(valid, 0, n))
	}
	cells, err := column.Cells(leaf)
	if err != nil {
		return false
	}
	(&merged{o, valid}).add(cells, n)
	return true
}

// validRows returns a bitmap of the rows that are not null; nil if none is.
func validRows(leaf arrow.Array, parents []arrow.Array) []byte {
	var valid []byte
	for _, a := range append(parents[:len(parents):len(parents)], leaf) {
		if a.NullN() == 0 {
			continue
		}
		if valid == nil {
			valid = make([]byte, bitutil.BytesForBits(int64(leaf.Len())))
			bitutil.CopyBitmap(a.NullBitmapBytes(), a.Data().Offset(), a.Len(), valid, 0)
			continue
		}
		for i := range a.Len() {
			if a.IsNull(i) {
				bitutil.ClearBit(valid, i)
			}
		}
	}
	return valid
}

// merged adds the valid values of an array to an Observed.
type merged struct {
	*Observed
	valid []byte
}

func (m *merged) add(cells any, n int) {
	switch cells := cells.(type) {
	case column.Bits:
		extremes(m, n, func(i int) int64 { return column.BoolInt(cells(i)) }, column.IntValue)
	case []int8:
		integers(m, cells)
	case []int16:
		integers(m, cells)
	case []uint8:
		integers(m, cells)
	case []uint16:
		integers(m, cells)
	case []uint32:
		integers(m, cells)
	case []uint64:
		extremes(m, n, func(i int) uint64 { return cells[i] }, func(v uint64) column.Value { return column.DecimalValue(decimal128.FromU64(v)) })
	case []float16.Num:
		floatExtremes(m, wide(cells))
	case []int32:
		integers(m, cells)
	case []int64:
		integers(m, cells)
	case []float32:
		floatExtremes(m, cells)
	case []float64:
		floatExtremes(m, cells)
	case column.Texts:
		extremes(m, n, cells, column.BytesValue)
	case []decimal128.Num:
		for i, v := range cells {
			if m.has(i) {
				m.include(column.DecimalValue(v))
			}
		}
	}
}

func (m *merged) has(i int) bool { return m.valid == nil || bitutil.BitIsSet(m.valid, i) }

// include extends the range by a value.
func (m *merged) include(v column.Value) {
	if !m.Some {
		m.Min, m.Max, m.Some = v, v, true
		return
	}
	if v.Compare(m.Min) < 0 {
		m.Min = v
	}
	if v.Compare(m.Max) > 0 {
		m.Max = v
	}
}

// integers extends the range by integers.
func integers[T column.Integer](m *merged, values []T) {
	if m.valid != nil || len(values) == 0 {
		extremes(m, len(values), func(i int) T { return values[i] }, func(v T) column.Value { return column.IntValue(int64(v)) })
		return
	}
	m.include(column.IntValue(int64(slices.Min(values))))
	m.include(column.IntValue(int64(slices.Max(values))))
}

// extremes extends the range by n values.
func extremes[T cmp.Ordered](m *merged, n int, at func(int) T, value func(T) column.Value) {
	var lo, hi T
	some := false
	for i := range n {
		if !m.has(i) {
			continue
		}
		v := at(i)
		if !some {
			lo, hi, some = v, v, true
			continue
		}
		lo, hi = min(lo, v), max(hi, v)
	}
	if some {
		m.include(own(value(lo)))
		m.include(own(value(hi)))
	}
}

// own copies the bytes of a value, which may be those of an array.
func own(v column.Value) column.Value {
	v.Bytes = string([]byte(v.Bytes))
	return v
}

func floatExtremes[T float32 | float64](m *merged, values []T) {
	lo, hi := math.Inf(1), math.Inf(-1)
	some := false
	for i, v := range values {
		if !m.has(i) {
			continue
		}
		if v != v {
			m.NaNs++
			continue
		}
		lo, hi, some = min(lo, float64(v)), max(hi, float64(v)), true
	}
	if some {
		m.include(column.FloatValue(lo))
		m.include(column.FloatValue(hi))
	}
}

// Merge adds the rows of another part of the column.
func (o *Observed) Merge(p Observed) {
	o.Rows, o.Nulls, o.NaNs = o.Rows+p.Rows, o.Nulls+p.Nulls, o.NaNs+p.NaNs
	if p.Some {
		m := merged{Observed: o}
		m.include(p.Min)
		m.include(p.Max)
	}
}

// Contradiction is a number or a bound that values contradict.
type Contradiction struct {
	What      string // nulls, minimum or maximum
	Says, Has string // what is stated, and what the values have
	// Hides says that a filter which relies on the bounds could leave out rows that it is true for.
	Hides bool
}

// Contradicts lists what the values of a column contradict. part says that they are only some of the column's: their number is not
// compared then.
func (o *Observed) Contradicts(b Bounds, part bool) []Contradiction {
	var all []Contradiction
	if !part && b.Counted && b.Nulls != o.Nulls {
		hides := b.Nulls == 0 || b.allNull() && o.Nulls < o.Rows
		all = append(all, Contradiction{"nulls", fmt.Sprint(b.Nulls), fmt.Sprint(o.Nulls), hides})
	}
	if part && b.Counted && (b.Nulls == 0 && o.Nulls > 0 || b.allNull() && o.Nulls < o.Rows) {
		all = append(all, Contradiction{"nulls", fmt.Sprint(b.Nulls), fmt.Sprint(o.Nulls), true})
	}
	if !b.Known || !o.Some || b.Min.Kind != o.Min.Kind {
		return all
	}
	if o.Min.Compare(b.Min) < 0 {
		all = append(all, Contradiction{"minimum", b.Min.String(), o.Min.String(), true})
	}
	if o.Max.Compare(b.Max) > 0 {
		all = append(all, Contradiction{"maximum", b.Max.String(), o.Max.String(), true})
	}
	return all
}
