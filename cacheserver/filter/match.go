// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/predicate"
)

// Matcher is a filter of rows with a schema. It is safe for concurrent use. Make it with Match.
type Matcher struct {
	*predicate.Filter
	columns []int
	paths   []column.Path
}

// Match compiles a filter for rows of a schema, which need not be in memory yet. An error says what is wrong with the filter; if it is a
// column, the error lists those of the schema.
func Match(schema *arrow.Schema, text string) (*Matcher, error) {
	fields := column.FieldsOf(schema.Fields())
	compiled, err := Parse(text, fields)
	if err != nil {
		return nil, fmt.Errorf("filter: %w", err)
	}
	m := &Matcher{Filter: compiled}
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

// Columns are the indices, in the schema, of the columns that the filter compares.
func (m *Matcher) Columns() []int { return m.columns }

// Cost is the number of comparisons that are made for a row at most, and the number of bytes that one evaluator takes.
func (m *Matcher) Cost() (terms int, memory int64) { return m.Terms(), m.Memory() }

// Evaluator returns a function that returns a bitmap, least significant bit first, of which of n rows the filter is true for; columns are
// those of Columns, in that order. Only one goroutine may use it; its result is valid until the next call.
func (m *Matcher) Evaluator() func(columns []arrow.Array, n int) (keep []byte, err error) {
	e, mask := m.Filter.Evaluator(m.paths), &predicate.Mask{}
	return func(columns []arrow.Array, n int) ([]byte, error) {
		mask.Reset(n)
		err := e.Apply(mask, columns)
		return mask.Bits, err
	}
}
