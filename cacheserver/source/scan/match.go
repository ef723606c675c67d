// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/kubeflow/datacache/cacheserver/filter"
	"github.com/kubeflow/datacache/cacheserver/predicate"
	"github.com/kubeflow/datacache/cacheserver/source"
)

// matcher implements source.Matcher with the evaluator that Batches uses.
type matcher struct {
	filter  *predicate.Filter
	columns []int
}

// Match implements Match of source.Source. Names and types are those of the served columns, whose schema determines the Iceberg type of
// each.
func Match(schema *arrow.Schema, text string) (source.Matcher, error) {
	cached, err := table.ArrowSchemaToIcebergWithFreshIDs(schema, false)
	if err != nil {
		return nil, fmt.Errorf("filter: the cached columns: %w", err)
	}
	unbound, err := filter.Parse(text, cached)
	if err != nil {
		return nil, fmt.Errorf("filter: %w", err)
	}
	m := &matcher{}
	bound, err := predicate.Bind(cached, unbound)
	if err != nil {
		return nil, fmt.Errorf("filter: %w", err)
	}
	if bound == nil {
		return m, nil
	}
	ids, err := ice.ExtractFieldIDs(bound)
	if err != nil {
		return nil, fmt.Errorf("filter: its columns: %w", err)
	}
	paths := map[int]predicate.Path{}
	for i, f := range cached.Fields() {
		for _, id := range ids {
			kids, leaf, ok := PathTo(f, id)
			if !ok {
				continue
			}
			if !slices.Contains(m.columns, i) {
				m.columns = append(m.columns, i)
			}
			paths[id] = predicate.Path{Column: len(m.columns) - 1, Kids: kids, Field: leaf}
		}
	}
	m.filter, err = predicate.Compile(bound, paths)
	return m, err
}

// Columns implements source.Matcher.
func (m *matcher) Columns() []int { return m.columns }

// Cost implements source.Matcher.
func (m *matcher) Cost() (terms int, memory int64) { return m.filter.Terms(), m.filter.Memory() }

// Evaluator implements source.Matcher.
func (m *matcher) Evaluator() source.Evaluator {
	e, mask := m.filter.Evaluator(), &predicate.Mask{}
	return func(columns []arrow.Array, n int) ([]byte, error) {
		mask.Reset(n)
		err := e.Apply(mask, columns)
		return mask.Bits, err
	}
}

// PathTo returns the indices that lead from f through structs to field id.
func PathTo(f ice.NestedField, id int) (kids []int, leaf ice.NestedField, ok bool) {
	if f.ID == id {
		return nil, f, true
	}
	st, isStruct := f.Type.(*ice.StructType)
	if !isStruct {
		return nil, f, false
	}
	for i, kid := range st.FieldList {
		if rest, leaf, ok := PathTo(kid, id); ok {
			return append([]int{i}, rest...), leaf, true
		}
	}
	return nil, f, false
}
