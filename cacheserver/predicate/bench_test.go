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

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
)

// chainOf returns n filters.
func chainOf(n int, kid func(i int) syntax.Node) []syntax.Node {
	all := make([]syntax.Node, n)
	for i := range all {
		all[i] = kid(i)
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
	arrays := []arrow.Array{ids.NewArray(), texts.NewArray()}
	id := func(op syntax.Operator, v int) syntax.Node { return is("l", op, column.IntValue(int64(v))) }
	text := func(op syntax.Operator, v int) syntax.Node { return is("s", op, column.BytesValue(fmt.Sprint(v))) }
	for name, filter := range map[string]syntax.Node{
		"one comparison":        id(syntax.Less, 50_000),
		"100 equalities by OR":  or(chainOf(100, func(i int) syntax.Node { return id(syntax.Equal, 977*i) })...),
		"100 comparisons by OR": or(chainOf(100, func(i int) syntax.Node { return id(syntax.Less, -i) })...),
		"100 texts by OR":       or(chainOf(100, func(i int) syntax.Node { return text(syntax.Equal, 977*i) })...),
		"one text":              text(syntax.Equal, 977),
		"text <":                text(syntax.Less, 977),
	} {
		b.Run(name, func(b *testing.B) {
			f := compile(b, filter)
			e, m := f.Evaluator([]column.Path{{Column: int(column.BoolInt(f.Fields()[0].Name == "s"))}}), &Mask{}
			for b.Loop() {
				m.Reset(n)
				if err := e.Apply(m, arrays); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n/float64(f.Terms()), "ns/row/term")
			b.ReportMetric(float64(f.Terms()), "terms")
		})
	}
}
