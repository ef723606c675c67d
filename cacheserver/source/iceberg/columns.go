// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"fmt"
	"slices"

	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
	"github.com/kubeflow/datacache/cacheserver/source/scan"
)

// columnsOf returns how the columns of a data file become those of the table.
func (t *Table) columnsOf(f *parquet.Footer, d *dataFile) (*scan.Columns, error) {
	c := &scan.Columns{Paths: map[int]column.Path{}}
	fields := slices.Clone(t.Fields)
	var err error
	for _, id := range t.comparedFields(d) {
		if _, ok := c.Paths[id]; ok {
			continue
		}
		if c.Paths[id], fields, err = t.addCompared(fields, id); err != nil {
			return nil, fmt.Errorf("data file %s: %scompare its rows: %w", f.URI, d.comparing(id), err)
		}
	}
	missing := sources{partition: d.partition, defaults: t.defaults}.value
	if c.Projection, err = parquet.NewProjection(f, fields, missing); err != nil {
		return nil, fmt.Errorf("%w: %s", err, t.readable(func(field column.Field) error {
			_, err := parquet.NewProjection(f, []column.Field{field}, missing)
			return err
		}))
	}
	c.Change = d.inherit(fields)
	return c, nil
}

// readable tells the user which columns can be selected: those for which problem returns nil.
func (t *Table) readable(problem func(column.Field) error) string {
	var names []string
	for _, f := range t.schema.Fields() {
		if field, err := t.fieldOf(f); err == nil && problem(field) == nil {
			names = append(names, f.Name)
		}
	}
	if len(names) == 0 {
		return "no column can be read"
	}
	return "leave the column out, columns that can be read are " + listed(names, func(name string) string { return name })
}

// comparedFields returns the field ids that the filter and d's equality deletes compare.
func (t *Table) comparedFields(d *dataFile) []int {
	var ids []int
	for _, f := range t.Filter.Fields() {
		ids = append(ids, f.ID)
	}
	if d.deletes != nil {
		for _, del := range d.deletes.equality {
			ids = append(ids, del.EqualityFieldIDs()...)
		}
	}
	return ids
}

// addCompared returns the path to field id, and fields, with another column if none of them contains it.
func (t *Table) addCompared(fields []column.Field, id int) (column.Path, []column.Field, error) {
	if path, ok := column.Find(fields, id); ok {
		return path, fields, nil
	}
	chain, err := t.topLevelField(id)
	if err != nil {
		return column.Path{}, nil, err
	}
	path, _ := column.PathTo(len(fields), chain, id)
	return path, append(fields, chain), nil
}

// topLevelField returns the top-level field that contains field id, reduced to that field. A field that was dropped is looked up in
// older schemas.
func (t *Table) topLevelField(id int) (column.Field, error) {
	schemas := append([]*ice.Schema{t.whole}, t.table.Metadata().Schemas()...)
	slices.Reverse(schemas[1:]) // newest first
	for _, s := range schemas {
		for _, f := range s.Fields() {
			all, err := t.fieldOf(f)
			if err != nil {
				continue // another column, or a filter on this one was refused
			}
			if only, ok := all.Only(id); ok {
				return only, nil
			}
		}
	}
	return column.Field{}, fmt.Errorf("field %d is in no schema of the table", id)
}

// namesOf converts a name mapping.
func namesOf(fields []ice.MappedField) parquet.NameMapping {
	var names parquet.NameMapping
	if fields != nil {
		names = parquet.NameMapping{}
	}
	for _, f := range fields {
		name := parquet.MappedName{Names: f.Names, Kids: namesOf(f.Fields)}
		if f.FieldID != nil {
			name.ID = *f.FieldID
		}
		names = append(names, name)
	}
	return names
}
