// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/filter"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/predicate"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
	"github.com/kubeflow/datacache/cacheserver/source/scan"
)

// table is a version of the files with the columns and the filter of a selection.
type table struct {
	*scan.Table
	pin        *Pin
	all        []column.Field // columns of the files, then those of folder names
	partitions []column.Field // the last ones of all: those of folder names
}

func newTable(store *objstore.Store, pin *Pin) *table {
	t := &table{Table: scan.New(store), pin: pin}
	t.ByName = true
	t.File = func(_ context.Context, s source.Split) (*scan.File, error) { return t.file(s.File) }
	return t
}

// choose sets the columns and the filter. The last columns of schema, which partitions names, are those of folder names.
func (t *table) choose(schema *arrow.Schema, partitions []string, selection Selection) error {
	t.all = column.FieldsOf(schema.Fields())
	t.partitions = t.all[len(t.all)-len(partitions):]
	t.Names = namesOf(t.all[:len(t.all)-len(partitions)])
	t.Fields = t.all
	if len(selection.Columns) > 0 {
		t.Fields = slices.DeleteFunc(slices.Clone(t.all), func(f column.Field) bool { return !slices.Contains(selection.Columns, f.Name) })
	}
	for i, name := range selection.Columns {
		if !slices.ContainsFunc(t.all, func(f column.Field) bool { return f.Name == name }) {
			return fmt.Errorf("column %q: the files have no such top-level column, they have %s", name, listed(t.all))
		}
		if slices.Contains(selection.Columns[:i], name) {
			return fmt.Errorf("column %q is named twice: name every column once", name)
		}
	}
	served := make([]arrow.Field, len(t.Fields))
	for i, f := range t.Fields {
		served[i] = arrow.Field{Name: f.Name, Type: f.Type, Nullable: !f.Required}
	}
	metadata := schema.Metadata()
	t.Served = arrow.NewSchema(served, &metadata)
	if strings.TrimSpace(selection.Filter) == "" {
		return nil
	}
	var err error
	if t.Filter, err = filter.Parse(selection.Filter, t.all); err != nil {
		return fmt.Errorf("filter %q: %w", selection.Filter, err)
	}
	t.Compared = slices.DeleteFunc(slices.Clone(t.Filter.Fields()), t.isPartition)
	return nil
}

func (t *table) isPartition(f column.Field) bool {
	return slices.ContainsFunc(t.partitions, func(p column.Field) bool { return p.ID == f.ID })
}

// file describes a data file.
func (t *table) file(uri string) (*scan.File, error) {
	f := &scan.File{Split: source.Split{File: uri, FileSize: -1, Exact: t.Filter == nil}, Rows: -1}
	var values map[int]*column.Value
	if len(t.partitions) > 0 {
		var err error
		if values, err = partitionValues(t.pin.relative(uri), t.partitions); err != nil {
			return nil, err
		}
		f.Constant = make(map[int]predicate.Bounds, len(values))
		for id, v := range values {
			if f.Constant[id] = (predicate.Bounds{Counted: true, Nulls: 1, Values: 1}); v != nil {
				f.Constant[id] = predicate.Single(*v)
			}
		}
	}
	f.Columns = func(footer *parquet.Footer) (*scan.Columns, error) { return t.columnsOf(footer, values) }
	return f, nil
}

// columnsOf returns how the columns of a file become those of the table; values are those of the columns of folder names.
func (t *table) columnsOf(f *parquet.Footer, values map[int]*column.Value) (*scan.Columns, error) {
	c := &scan.Columns{Paths: map[int]column.Path{}}
	fields := slices.Clone(t.Fields)
	for _, compared := range t.Filter.Fields() {
		c.Paths[compared.ID], fields = t.pathTo(compared.ID, fields)
	}
	var err error
	c.Projection, err = parquet.NewProjection(f, fields, func(field column.Field) (*column.Value, error) { return values[field.ID], nil })
	return c, err
}

// pathTo returns the path to a field that the filter compares, and fields, with another column if none of them contains it.
func (t *table) pathTo(id int, fields []column.Field) (column.Path, []column.Field) {
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

// namesOf is the name mapping of columns.
func namesOf(fields []column.Field) parquet.NameMapping {
	names := make(parquet.NameMapping, len(fields))
	for i, f := range fields {
		names[i] = parquet.MappedName{Names: []string{f.Name}, ID: f.ID, Kids: namesOf(f.Kids)}
	}
	return names
}

// mostListed bounds the columns that a message lists.
const mostListed = 40

func listed(fields []column.Field) string {
	var names []string
	for _, f := range fields[:min(len(fields), mostListed)] {
		names = append(names, fmt.Sprintf("%q", f.Name))
	}
	if more := len(fields) - mostListed; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}
