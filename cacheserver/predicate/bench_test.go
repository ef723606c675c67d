// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	ice "github.com/apache/iceberg-go"
)

// chainOf joins n filters.
func chainOf(n int, join func(left, right ice.BooleanExpression, more ...ice.BooleanExpression) ice.BooleanExpression, kid func(i int) ice.BooleanExpression) ice.BooleanExpression {
	all := kid(0)
	for i := 1; i < n; i++ {
		all = join(all, kid(i))
	}
	return all
}

// BenchmarkFilter measures filters over 2^20 rows.
func BenchmarkFilter(b *testing.B) {
	const n = 1 << 20
	r := rand.New(rand.NewPCG(1, 1))
	ids, texts := array.NewInt64Builder(memory.DefaultAllocator), array.NewStringBuilder(memory.DefaultAllocator)
	for range n {
		v := r.Int64N(100_000)
		ids.Append(v)
		texts.Append(fmt.Sprint(v))
	}
	schema := ice.NewSchema(0,
		ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64},
		ice.NestedField{ID: 2, Name: "text", Type: ice.PrimitiveTypes.String})
	columns := []arrow.Array{ids.NewArray(), texts.NewArray()}
	id, text := ice.Reference("id"), ice.Reference("text")
	is := func(op ice.Operation, v int64) ice.BooleanExpression {
		return ice.LiteralPredicate(op, id, ice.NewLiteral(v))
	}
	for name, filter := range map[string]ice.BooleanExpression{
		"one comparison":        is(ice.OpLT, 50_000),
		"100 equalities by OR":  chainOf(100, ice.NewOr, func(i int) ice.BooleanExpression { return is(ice.OpEQ, int64(977*i)) }),
		"100 comparisons by OR": chainOf(100, ice.NewOr, func(i int) ice.BooleanExpression { return is(ice.OpLT, int64(-i)) }),
		"100 texts by OR": chainOf(100, ice.NewOr, func(i int) ice.BooleanExpression {
			return ice.LiteralPredicate(ice.OpEQ, text, ice.NewLiteral(fmt.Sprint(977*i)))
		}),
		"one text": ice.LiteralPredicate(ice.OpEQ, text, ice.NewLiteral("977")),
		"text <":   ice.LiteralPredicate(ice.OpLT, text, ice.NewLiteral("977")),
	} {
		b.Run(name, func(b *testing.B) {
			bound, err := Bind(schema, filter)
			if err != nil {
				b.Fatal(err)
			}
			f, err := Compile(bound, map[int]Path{1: {Column: 0}, 2: {Column: 1}})
			if err != nil {
				b.Fatal(err)
			}
			e, m := f.Evaluator(), &Mask{}
			for b.Loop() {
				m.Reset(n)
				if err := e.Apply(m, columns); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n/float64(f.Terms()), "ns/row/term")
			b.ReportMetric(float64(f.Terms()), "terms")
		})
	}
}
