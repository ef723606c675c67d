// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/predicate"
)

// statistics compares what footer and manifest state about the columns of a split with its rows: the bounds of the columns that the
// filter compares, and the null counts of all. Only these, because they cost next to nothing; Audit compares everything. Deleted rows
// count, as they do in the files.
type statistics struct {
	compared []column.Path // the filter's columns that the file has
	observed []predicate.Observed
	counted  []int // indices of the other served columns whose nulls are counted
	nulls    []int64
}

func newStatistics(f *Fetched) *statistics {
	s := &statistics{}
	compared := map[int]bool{}
	for _, field := range f.table.Compared {
		if p, ok := f.columns.Paths[field.ID]; ok && f.footer.Has(field.ID) {
			s.compared = append(s.compared, p)
			compared[field.ID] = true
		}
	}
	for i, field := range f.table.Fields {
		if f.whole() && !compared[field.ID] && f.footer.Has(field.ID) {
			s.counted = append(s.counted, i)
		}
	}
	s.observed, s.nulls = make([]predicate.Observed, len(s.compared)), make([]int64, len(s.counted))
	return s
}

// whole reports whether the split is all of its row group.
func (f *Fetched) whole() bool {
	return f.split.First == 0 && f.split.Rows == f.footer.Rows(f.split.RowGroup)
}

// add adds the rows of a batch.
func (s *statistics) add(columns []arrow.Array) {
	for i, p := range s.compared {
		s.observed[i].Add(p.At(columns))
	}
	for i, at := range s.counted {
		s.nulls[i] += int64(columns[at].NullN())
	}
}

// conclude compares all rows of the split with what is stated about them. A difference is an error if the filter could have left out
// rows because of it.
func (s *statistics) conclude(f *Fetched) error {
	footer := f.footer.Bounds(f.split.RowGroup)
	for i, p := range s.compared {
		if err := f.compare(p.Field, "footer", s.observed[i].Contradicts(footer(p.Field), !f.whole())); err != nil {
			return err
		}
		if err := f.compare(p.Field, "manifest", s.observed[i].Contradicts(f.file.Stated[p.Field.ID], true)); err != nil {
			return err
		}
	}
	for i, at := range s.counted {
		field := f.table.Fields[at]
		if b := footer(field); b.Counted && b.Nulls != s.nulls[i] {
			f.report.Differences = append(f.report.Differences, fmt.Sprintf("column %q: the footer says %d nulls, the rows have %d", field.Name, b.Nulls, s.nulls[i]))
		}
	}
	return nil
}

// compare reports what the rows of a column that the filter compares contradict.
func (f *Fetched) compare(field column.Field, by string, all []predicate.Contradiction) error {
	for _, c := range all {
		text := fmt.Sprintf("column %q: the %s says %s %s, the rows have %s", field.Name, by, c.What, c.Says, c.Has)
		if c.Hides {
			return fmt.Errorf("%s: the filter skips files and row groups by such bounds, and may have left out rows that it is true for: "+
				"rewrite the file, or load the table without a filter on this column; cacheserver audit lists all such bounds", text)
		}
		f.report.Differences = append(f.report.Differences, text)
	}
	return nil
}
