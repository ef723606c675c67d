// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
)

// test is what a term asks about a cell.
type test byte

const (
	isNull test = iota
	isNaN
	isIn      // the cell is one of the values
	isOrdered // the cell compares with the only value as accept says
)

// The bits of term.accept: results of comparing a cell with a value.
const (
	less = 1 << iota
	equal
	greater
)

// term is a test of one column. It is true for no null, whether it is negated or not; only isNull is.
type term struct {
	field   column.Field
	at      int // index of field among the filter's
	test    test
	negated bool
	accept  byte
	values  []column.Value // distinct, of one kind
	set     set            // of values; made by prepare
}

// termOf returns the term of a test.
func (c *compiler) termOf(t Test) term {
	at := slices.IndexFunc(c.fields, func(f column.Field) bool { return f.ID == t.Field.ID })
	if at < 0 {
		at, c.fields = len(c.fields), append(c.fields, t.Field)
	}
	made := term{field: t.Field, at: at, negated: t.Negated, values: t.Values, test: isOrdered}
	switch t.Op {
	case syntax.IsNull:
		made.test = isNull
	case syntax.IsNaN:
		made.test = isNaN
	case syntax.Less:
		made.accept = less
	case syntax.LessEqual:
		made.accept = less | equal
	case syntax.Greater:
		made.accept = greater
	case syntax.GreaterEqual:
		made.accept = greater | equal
	default: // Equal, In
		made.test = isIn
	}
	return made
}

// distinct removes duplicates, and orders the values.
func distinct(values []column.Value) []column.Value {
	if len(values) < 2 {
		return values
	}
	values = slices.SortedFunc(slices.Values(values), column.Value.Compare)
	return slices.Compact(values)
}

// key is equal for equal terms only.
func (t *term) key() []byte {
	key := []byte{byte(opTerm), byte(t.test), t.accept, byte(column.BoolInt(t.negated))}
	key = binary.AppendVarint(key, int64(t.field.ID))
	for _, v := range t.values {
		switch v.Kind {
		case column.Int:
			key = binary.AppendVarint(key, v.Int)
		case column.Float:
			key = binary.LittleEndian.AppendUint64(key, math.Float64bits(v.Float))
		case column.Bytes:
			key = append(binary.AppendUvarint(key, uint64(len(v.Bytes))), v.Bytes...)
		case column.Decimal:
			key = binary.LittleEndian.AppendUint64(key, uint64(v.Decimal.HighBits()))
			key = binary.LittleEndian.AppendUint64(key, v.Decimal.LowBits())
		}
	}
	return key
}

// set is a set of values of one kind, for a lookup for each row. Only the field of the kind is used, and for integers in a narrow range
// the bitmap near.
type set struct {
	low      int64  // the least integer
	span     uint64 // the greatest integer minus low
	near     []uint64
	ints     map[int64]struct{}
	floats   map[float64]struct{}
	texts    map[string]struct{}
	decimals map[decimal128.Num]struct{}
}

// nearSpan is the greatest span of integers that are looked up in a bitmap, of 8 KiB.
const nearSpan = 1<<16 - 1

// prepare makes the set of values.
func (t *term) prepare() {
	if t.test != isIn {
		return
	}
	s := &t.set
	switch t.values[0].Kind {
	case column.Int:
		s.low = t.values[0].Int
		s.span = uint64(t.values[len(t.values)-1].Int - s.low)
		if s.span > nearSpan {
			s.ints = keysOf(t.values, func(v column.Value) int64 { return v.Int })
			return
		}
		s.near = make([]uint64, s.span/64+1)
		for _, v := range t.values {
			at := uint64(v.Int - s.low)
			s.near[at/64] |= 1 << (at % 64)
		}
	case column.Float:
		s.floats = keysOf(t.values, func(v column.Value) float64 { return v.Float })
	case column.Bytes:
		s.texts = keysOf(t.values, func(v column.Value) string { return v.Bytes })
	case column.Decimal:
		s.decimals = keysOf(t.values, func(v column.Value) decimal128.Num { return v.Decimal })
	}
}

func keysOf[K comparable](values []column.Value, of func(column.Value) K) map[K]struct{} {
	keys := make(map[K]struct{}, len(values))
	for _, v := range values {
		keys[of(v)] = struct{}{}
	}
	return keys
}
