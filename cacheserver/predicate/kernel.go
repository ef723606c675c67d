// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate

import (
	"cmp"
	"errors"
	"math"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/float16"

	"github.com/kubeflow/datacache/cacheserver/column"
)

// evaluate sets out to the rows [lo, lo+n) of an array for which the test is true; those of nulls are arbitrary. Whether the term is
// negated does not matter here.
func (t *term) evaluate(arr arrow.Array, lo, n int, out *bitmap) error {
	cells, err := column.Cells(arr)
	if err != nil {
		return err
	}
	hi := lo + n
	switch cells := cells.(type) {
	case column.Bits:
		return eachValue(t, column.Int, lo, n, out, func(i int) int64 { return column.BoolInt(cells(i)) }, t.ofInt)
	case []int8:
		return eachInt(t, cells[lo:hi], out)
	case []int16:
		return eachInt(t, cells[lo:hi], out)
	case []uint8:
		return eachInt(t, cells[lo:hi], out)
	case []uint16:
		return eachInt(t, cells[lo:hi], out)
	case []uint32:
		return eachInt(t, cells[lo:hi], out)
	case []uint64:
		return eachValue(t, column.Decimal, lo, n, out, func(i int) decimal128.Num { return decimal128.FromU64(cells[i]) }, t.ofDecimal)
	case []float16.Num:
		return eachFloat(t, wide(cells[lo:hi]), out)
	case []int32:
		return eachInt(t, cells[lo:hi], out)
	case []int64:
		return eachInt(t, cells[lo:hi], out)
	case []float32:
		return eachFloat(t, cells[lo:hi], out)
	case []float64:
		return eachFloat(t, cells[lo:hi], out)
	case []decimal128.Num:
		return eachValue(t, column.Decimal, lo, n, out, func(i int) decimal128.Num { return cells[i] }, t.ofDecimal)
	}
	texts, _ := cells.(column.Texts)
	return eachValue(t, column.Bytes, lo, n, out, texts, t.ofText)
}

// check returns an error if cells of a kind can't be compared with the term's values.
func (t *term) check(cells column.Kind) error {
	if len(t.values) > 0 && t.values[0].Kind != cells {
		return errors.New("a literal of another kind than the column")
	}
	return nil
}

// words sets a word of out for every 64 values.
func words[T any](values []T, out *bitmap, word func([]T) uint64) {
	for w := 0; len(values) > 0; w++ {
		n := min(len(values), 64)
		out[w] = word(values[:n])
		values = values[n:]
	}
}

// eachInt evaluates the test of integers.
func eachInt[T column.Integer](t *term, values []T, out *bitmap) error {
	if err := t.check(column.Int); err != nil {
		return err
	}
	if t.test == isIn && len(t.values) > 1 {
		words(values, out, func(some []T) uint64 { return inSet(&t.set, some) })
		return nil
	}
	low, high, some := t.bounds()
	if !some {
		out.fill(false)
		return nil
	}
	span := uint64(high - low)
	words(values, out, func(some []T) uint64 { return inRange(some, low, span) })
	return nil
}

// bounds returns the integers for which a test with one value is true: those from low to high. some is false if there is none.
func (t *term) bounds() (low, high int64, some bool) {
	if t.test != isIn && t.test != isOrdered {
		return 0, 0, false
	}
	v := t.values[0].Int
	if t.test == isIn {
		return v, v, true
	}
	low, high = math.MinInt64, math.MaxInt64
	switch {
	case t.accept == less && v == low, t.accept == greater && v == high:
		return 0, 0, false
	case t.accept == less:
		return low, v - 1, true
	case t.accept == greater:
		return v + 1, high, true
	case t.accept&less != 0:
		return low, v, true
	}
	return v, high, true
}

// inRange has a bit for each of at most 64 values: whether it is one of low to low+span.
func inRange[T column.Integer](values []T, low int64, span uint64) (word uint64) {
	for i, v := range values {
		bit := uint64(0)
		if uint64(int64(v)-low) <= span {
			bit = 1
		}
		word |= bit << (i & 63)
	}
	return word
}

// inSet has a bit for each of at most 64 values: whether it is in the set.
func inSet[T column.Integer](s *set, values []T) (word uint64) {
	if s.near == nil {
		for i, v := range values {
			if _, ok := s.ints[int64(v)]; ok {
				word |= 1 << i
			}
		}
		return word
	}
	for i, v := range values {
		if at := uint64(int64(v) - s.low); at <= s.span {
			word |= s.near[at/64] >> (at % 64) & 1 << (i & 63)
		}
	}
	return word
}

// wide converts numbers of 16 bits.
func wide(halves []float16.Num) []float32 {
	out := make([]float32, len(halves))
	for i, v := range halves {
		out[i] = v.Float32()
	}
	return out
}

// eachFloat evaluates the test of floats.
func eachFloat[T float32 | float64](t *term, values []T, out *bitmap) error {
	if err := t.check(column.Float); err != nil {
		return err
	}
	switch accept := t.accept; {
	case t.test == isNaN:
		words(values, out, nans)
	case t.test == isIn && len(t.values) > 1:
		words(values, out, func(some []T) (word uint64) {
			for i, v := range some {
				if _, ok := t.set.floats[float64(v)]; ok {
					word |= 1 << i
				}
			}
			return word
		})
	default:
		if t.test == isIn {
			accept = equal
		}
		than := t.values[0].Float
		words(values, out, func(some []T) uint64 { return accepted(some, than, accept) })
	}
	return nil
}

// accepted has a bit for each of at most 64 values: whether comparing it with another one gives one of the accepted results.
func accepted[T float32 | float64](values []T, than float64, accept byte) (word uint64) {
	for i := range values {
		v, found := float64(values[i]), byte(0)
		if v < than {
			found = less
		}
		if v == than {
			found = equal
		}
		if v > than {
			found = greater
		}
		bit := uint64(0)
		if found&accept != 0 {
			bit = 1
		}
		word |= bit << (i & 63)
	}
	return word
}

func nans[T float32 | float64](values []T) (word uint64) {
	for i, v := range values {
		if v != v {
			word |= 1 << i
		}
	}
	return word
}

// eachValue evaluates a term over the values [lo, lo+n) one by one, for kinds without a vectorized kernel. test returns the function that
// tests one value.
func eachValue[T any](t *term, kind column.Kind, lo, n int, out *bitmap, value func(i int) T, test func() func(T) bool) error {
	if err := t.check(kind); err != nil {
		return err
	}
	if t.test == isNaN {
		out.fill(false)
		return nil
	}
	holds := test()
	for w := range (n + 63) / 64 {
		word := uint64(0)
		for i := range min(64, n-w*64) {
			if holds(value(lo + w*64 + i)) {
				word |= 1 << i
			}
		}
		out[w] = word
	}
	return nil
}

// accepts reports whether the term accepts the result of a comparison: -1, 0 or 1.
func (t *term) accepts(c int) bool { return t.accept>>(c+1)&1 == 1 }

func (t *term) ofInt() func(int64) bool {
	if t.test == isIn {
		return func(v int64) bool { return inSet(&t.set, []int64{v}) == 1 }
	}
	return func(v int64) bool { return t.accepts(cmp.Compare(v, t.values[0].Int)) }
}

func (t *term) ofText() func(string) bool {
	first := t.values[0].Bytes
	switch {
	case t.test == isOrdered:
		return func(v string) bool { return t.accepts(strings.Compare(v, first)) }
	case len(t.values) == 1:
		return func(v string) bool { return v == first }
	}
	return func(v string) bool { _, ok := t.set.texts[v]; return ok }
}

func (t *term) ofDecimal() func(decimal128.Num) bool {
	first := t.values[0].Decimal
	switch {
	case t.test == isOrdered:
		return func(v decimal128.Num) bool { return t.accepts(v.Cmp(first)) }
	case len(t.values) == 1:
		return func(v decimal128.Num) bool { return v == first }
	}
	return func(v decimal128.Num) bool { _, ok := t.set.decimals[v]; return ok }
}
