// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/apache/arrow-go/v18/arrow/decimal128"
	ice "github.com/apache/iceberg-go"
)

// test is what a term asks about a cell.
type test byte

const (
	isNull test = iota
	isNaN
	isIn       // the cell is one of the values
	isOrdered  // the cell compares with the only value as accept says
	startsWith // the cell begins with the term's value; such a term has exactly one
)

// The bits of term.accept: results of comparing a cell with a value.
const (
	less = 1 << iota
	equal
	greater
)

// term is a test of one column. It is true for no null, whether it is negated or not; only isNull is.
type term struct {
	path    Path
	test    test
	negated bool
	accept  byte
	values  []Value // distinct, of one kind
	set     set     // of values; made by prepare
}

// termOf returns the term of a predicate.
func (c *compiler) termOf(p ice.BoundPredicate, negated bool) (term, error) {
	ref, ok := p.Term().(ice.BoundReference)
	if !ok {
		return term{}, fmt.Errorf("term %s is no column", p.Term())
	}
	t := term{negated: negated}
	if t.path, ok = c.paths[ref.Field().ID]; !ok {
		return term{}, fmt.Errorf("column %q was not read", ref.Field().Name)
	}
	t.path.Field = ref.Field()
	var inverse bool
	if t.test, t.accept, inverse, ok = testOf(p.Op()); !ok {
		return term{}, fmt.Errorf("column %q: operator %s is not supported", ref.Field().Name, p.Op())
	}
	t.negated = negated != inverse
	for _, lit := range literalsOf(p) {
		v, err := FromLiteral(lit, p.Term().Type())
		if err != nil {
			return term{}, fmt.Errorf("column %q: %w", ref.Field().Name, err)
		}
		t.values = append(t.values, v)
	}
	if t.test == startsWith && t.values[0].Kind != KindBytes {
		return term{}, fmt.Errorf("column %q cannot be compared with a prefix", ref.Field().Name)
	}
	return t, nil
}

// testOf returns the test that an operator makes; inverse says that the operator is true where the test is false.
func testOf(op ice.Operation) (of test, accept byte, inverse, ok bool) {
	switch op {
	case ice.OpIsNull, ice.OpNotNull:
		return isNull, 0, op == ice.OpNotNull, true
	case ice.OpIsNan, ice.OpNotNan:
		return isNaN, 0, op == ice.OpNotNan, true
	case ice.OpEQ, ice.OpIn:
		return isIn, 0, false, true
	case ice.OpNEQ, ice.OpNotIn:
		return isIn, 0, true, true
	case ice.OpLT:
		return isOrdered, less, false, true
	case ice.OpLTEQ:
		return isOrdered, less | equal, false, true
	case ice.OpGT:
		return isOrdered, greater, false, true
	case ice.OpGTEQ:
		return isOrdered, greater | equal, false, true
	case ice.OpStartsWith, ice.OpNotStartsWith:
		return startsWith, 0, op == ice.OpNotStartsWith, true
	}
	return 0, 0, false, false
}

func literalsOf(p ice.BoundPredicate) []ice.Literal {
	switch p := p.(type) {
	case ice.BoundLiteralPredicate:
		return []ice.Literal{p.Literal()}
	case ice.BoundSetPredicate:
		return p.Literals().Members()
	}
	return nil
}

// distinct removes duplicates, and orders the values.
func distinct(values []Value) []Value {
	if len(values) < 2 {
		return values
	}
	values = slices.Clone(values)
	slices.SortFunc(values, Value.Compare)
	return slices.Compact(values)
}

// key is equal for equal terms only.
func (t *term) key() []byte {
	key := []byte{byte(t.test), t.accept, 0}
	if t.negated {
		key[2] = 1
	}
	key = binary.AppendVarint(key, int64(t.path.Field.ID))
	for _, v := range t.values {
		switch v.Kind {
		case KindInt:
			key = binary.AppendVarint(key, v.Int)
		case KindFloat:
			key = binary.LittleEndian.AppendUint64(key, math.Float64bits(v.Float))
		case KindBytes:
			key = append(binary.AppendUvarint(key, uint64(len(v.Bytes))), v.Bytes...)
		case KindDecimal:
			key = binary.LittleEndian.AppendUint64(key, uint64(v.Decimal.HighBits()))
			key = binary.LittleEndian.AppendUint64(key, v.Decimal.LowBits())
		}
	}
	return key
}

// set is a set of values of one kind, for a lookup for each row. Only the field of the kind is used, and for integers in a narrow range
// the bitmap near.
type set struct {
	kind     Kind
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
	t.set = set{kind: t.values[0].Kind}
	switch t.set.kind {
	case KindInt:
		t.set.low = t.values[0].Int
		t.set.span = uint64(t.values[len(t.values)-1].Int - t.set.low)
		if t.set.span <= nearSpan {
			t.set.near = make([]uint64, t.set.span/64+1)
			for _, v := range t.values {
				at := uint64(v.Int - t.set.low)
				t.set.near[at/64] |= 1 << (at % 64)
			}
			return
		}
		t.set.ints = keysOf(t.values, func(v Value) int64 { return v.Int })
	case KindFloat:
		t.set.floats = keysOf(t.values, func(v Value) float64 { return v.Float })
	case KindBytes:
		t.set.texts = keysOf(t.values, func(v Value) string { return v.Bytes })
	case KindDecimal:
		t.set.decimals = keysOf(t.values, func(v Value) decimal128.Num { return v.Decimal })
	}
}

func keysOf[K comparable](values []Value, of func(Value) K) map[K]struct{} {
	keys := make(map[K]struct{}, len(values))
	for _, v := range values {
		keys[of(v)] = struct{}{}
	}
	return keys
}
