// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

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

// matcher implements source.Matcher with the evaluator that loading uses.
type matcher struct {
	filter  ice.BooleanExpression // nil: true for every row
	paths   map[int]predicate.Path
	columns []int
}

// Match implements source.Source. Names and types are those of the served columns, whose schema determines the Iceberg type of each.
func (s *Source) Match(schema *arrow.Schema, text string) (source.Matcher, error) {
	cached, err := table.ArrowSchemaToIcebergWithFreshIDs(schema, false)
	if err != nil {
		return nil, fmt.Errorf("filter: the cached columns: %w", err)
	}
	unbound, err := filter.Parse(text, cached)
	if err != nil {
		return nil, fmt.Errorf("filter: %w", err)
	}
	m := &matcher{paths: map[int]predicate.Path{}}
	if m.filter, err = predicate.Bind(cached, unbound); err != nil {
		return nil, fmt.Errorf("filter: %w", err)
	}
	if m.filter == nil {
		return m, nil
	}
	ids, err := ice.ExtractFieldIDs(m.filter)
	if err != nil {
		return nil, fmt.Errorf("filter: its columns: %w", err)
	}
	for i, f := range cached.Fields() {
		for _, id := range ids {
			kids, leaf, ok := pathTo(f, id)
			if !ok {
				continue
			}
			if !slices.Contains(m.columns, i) {
				m.columns = append(m.columns, i)
			}
			m.paths[id] = predicate.Path{Column: len(m.columns) - 1, Kids: kids, Field: leaf}
		}
	}
	return m, nil
}

// Columns implements source.Matcher.
func (m *matcher) Columns() []int { return m.columns }

// Match implements source.Matcher.
func (m *matcher) Match(columns []arrow.Array, n int) ([]byte, error) {
	mask := predicate.NewMask(n)
	if err := predicate.Apply(mask, m.filter, m.paths, columns); err != nil {
		return nil, err
	}
	return mask.Bits, nil
}
