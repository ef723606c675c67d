// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/filter"
	"github.com/kubeflow/datacache/cacheserver/predicate"
	"github.com/kubeflow/datacache/cacheserver/source"
)

// matcher implements source.Matcher with the evaluator that Batches uses.
type matcher struct {
	*predicate.Filter
	columns []int
	paths   []column.Path
}

// Match implements Match of source.Source. Names and types are those of the served columns.
func Match(schema *arrow.Schema, text string) (source.Matcher, error) {
	ids := 0
	fields := fieldsOf(schema.Fields(), &ids)
	compiled, err := filter.Parse(text, fields)
	if err != nil {
		return nil, fmt.Errorf("filter: %w", err)
	}
	m := &matcher{Filter: compiled}
	used := map[int]int{} // indices among columns
	for _, f := range compiled.Fields() {
		for i, top := range fields {
			path, ok := column.PathTo(0, top, f.ID)
			if !ok {
				continue
			}
			if _, again := used[i]; !again {
				used[i] = len(m.columns)
				m.columns = append(m.columns, i)
			}
			path.Column = used[i]
			m.paths = append(m.paths, path)
		}
	}
	return m, nil
}

// fieldsOf describes served columns; ids counts them and their parts.
func fieldsOf(fields []arrow.Field, ids *int) []column.Field {
	out := make([]column.Field, len(fields))
	for i, f := range fields {
		*ids++
		out[i] = column.Field{ID: *ids, Name: f.Name, Type: f.Type, TypeName: column.Name(f.Type), Required: !f.Nullable}
		switch t := f.Type.(type) {
		case *arrow.StructType:
			out[i].Kids = fieldsOf(t.Fields(), ids)
		case *arrow.ListType:
			out[i].Kids = fieldsOf([]arrow.Field{{Name: "element", Type: t.Elem()}}, ids)
		case *arrow.MapType:
			out[i].Kids = fieldsOf([]arrow.Field{{Name: "key", Type: t.KeyType()}, {Name: "value", Type: t.ItemType()}}, ids)
		}
	}
	return out
}

// Columns implements source.Matcher.
func (m *matcher) Columns() []int { return m.columns }

// Cost implements source.Matcher.
func (m *matcher) Cost() (terms int, memory int64) { return m.Terms(), m.Memory() }

// Evaluator implements source.Matcher.
func (m *matcher) Evaluator() source.Evaluator {
	e, mask := m.Filter.Evaluator(m.paths), &predicate.Mask{}
	return func(columns []arrow.Array, n int) ([]byte, error) {
		mask.Reset(n)
		err := e.Apply(mask, columns)
		return mask.Bits, err
	}
}
