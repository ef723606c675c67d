// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/filter"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/predicate"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
)

// Selection selects rows and columns. The zero value selects all.
type Selection struct {
	// Columns are top-level column names; none means all. Columns are served in the table's order, regardless of the order here.
	Columns []string `json:"columns,omitempty"`
	// Filter is a SQL WHERE expression (package filter); empty means all rows.
	Filter string `json:"filter,omitempty"`
}

// Choose sets the served columns and the filter of a table with the columns all. Those of constant have one value in all rows of a file,
// so that files have no statistics of them.
func (t *Table) Choose(all, constant []column.Field, metadata *arrow.Metadata, selection Selection) error {
	t.all, t.Fields = all, all
	if len(selection.Columns) > 0 {
		t.Fields = slices.DeleteFunc(slices.Clone(all), func(f column.Field) bool { return !slices.Contains(selection.Columns, f.Name) })
	}
	for i, name := range selection.Columns {
		if !slices.ContainsFunc(all, func(f column.Field) bool { return f.Name == name }) {
			return fmt.Errorf("column %q: there is no such top-level column, there are %s", name, Listed(all))
		}
		if slices.Contains(selection.Columns[:i], name) {
			return fmt.Errorf("column %q is named twice: name every column once", name)
		}
	}
	served := make([]arrow.Field, len(t.Fields))
	for i, f := range t.Fields {
		if err := CheckDepth(f.Type); err != nil {
			return fmt.Errorf("column %q: %w", f.Name, err)
		}
		served[i] = arrow.Field{Name: f.Name, Type: f.Type, Nullable: !f.Required, Metadata: f.Metadata}
	}
	t.Served = arrow.NewSchema(served, metadata)
	if strings.TrimSpace(selection.Filter) == "" {
		return nil
	}
	var err error
	if t.Filter, err = filter.Parse(selection.Filter, all); err != nil {
		return fmt.Errorf("filter %q: %w", selection.Filter, err)
	}
	t.Compared = slices.DeleteFunc(slices.Clone(t.Filter.Fields()), func(f column.Field) bool {
		return slices.ContainsFunc(constant, func(c column.Field) bool { return c.ID == f.ID })
	})
	return nil
}

// mostLevels is how many levels of nested fields readers of Arrow streams accept, pyarrow among them.
const mostLevels = 64

// CheckDepth returns an error if clients cannot read values of a type because it is nested too deep.
func CheckDepth(t arrow.DataType) error {
	if levels(t) > mostLevels {
		return fmt.Errorf("it has %d levels of nested fields, Arrow clients read at most %d: leave it out, or write it flatter", levels(t), mostLevels)
	}
	return nil
}

func levels(t arrow.DataType) int {
	below := 0
	if nested, ok := t.(arrow.NestedType); ok {
		for _, kid := range nested.Fields() {
			below = max(below, levels(kid.Type))
		}
	}
	return below + 1
}

// ColumnsOf returns how the columns of a file become those of the table; values are those of columns that the file lacks, by field id. Columns
// without a value are null.
func (t *Table) ColumnsOf(f *parquet.Footer, values map[int]*column.Value) (*Columns, error) {
	c := &Columns{Paths: map[int]column.Path{}}
	fields := slices.Clone(t.Fields)
	for _, compared := range t.Filter.Fields() {
		c.Paths[compared.ID], fields = t.pathTo(compared.ID, fields)
	}
	var err error
	c.Projection, err = parquet.NewProjection(f, fields, func(field column.Field) (*column.Value, error) { return values[field.ID], nil })
	return c, err
}

// pathTo returns the path to a field that the filter compares, and fields, with another column if none of them contains it.
func (t *Table) pathTo(id int, fields []column.Field) (column.Path, []column.Field) {
	if path, ok := column.Find(fields, id); ok {
		return path, fields
	}
	for _, f := range t.all {
		if only, ok := f.Only(id); ok {
			path, _ := column.PathTo(len(fields), only, id)
			return path, append(fields, only)
		}
	}
	panic(fmt.Sprintf("the filter compares field %d, which no column has", id))
}

// Constants returns the bounds of columns with one value in a file; nil is null.
func Constants(values map[int]*column.Value) map[int]predicate.Bounds {
	bounds := make(map[int]predicate.Bounds, len(values))
	for id, v := range values {
		if bounds[id] = (predicate.Bounds{Counted: true, Nulls: 1, Values: 1}); v != nil {
			bounds[id] = predicate.Single(*v)
		}
	}
	return bounds
}

// mostListed bounds the columns that a message lists.
const mostListed = 40

// Listed lists the names of columns for a message.
func Listed(fields []column.Field) string {
	var names []string
	for _, f := range fields[:min(len(fields), mostListed)] {
		names = append(names, fmt.Sprintf("%q", f.Name))
	}
	if more := len(fields) - mostListed; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// Retry classifies the errors of sources that read nothing but a Store.
func Retry(err error) source.Retry {
	switch {
	case errors.Is(err, objstore.ErrUnavailable):
		return source.Soon
	case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist):
		return source.OnceMended
	}
	return source.Never
}
