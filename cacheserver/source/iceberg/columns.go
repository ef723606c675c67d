// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"fmt"
	"slices"

	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/predicate"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
	"github.com/kubeflow/datacache/cacheserver/source/scan"
)

// columnsOf returns how the columns of a data file become those of the table.
func (t *Table) columnsOf(f *parquet.Footer, d *dataFile) (*scan.Columns, error) {
	c := &scan.Columns{Paths: map[int]predicate.Path{}}
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
	missing := sources{partition: t.partition(d), defaults: t.defaults}.value
	if c.Projection, err = parquet.NewProjection(f, fields, missing, t.properties); err != nil {
		return nil, fmt.Errorf("%w: %s", err, t.readable(func(field ice.NestedField) error {
			_, err := parquet.NewProjection(f, []ice.NestedField{field}, missing, t.properties)
			return err
		}))
	}
	c.Change = d.inherit(fields)
	return c, nil
}

// readable tells the user which columns can be selected: those for which problem returns nil.
func (t *Table) readable(problem func(ice.NestedField) error) string {
	var names []string
	for _, f := range t.schema.Fields() {
		if problem(f) == nil {
			names = append(names, f.Name)
		}
	}
	if len(names) == 0 {
		return "no column can be read"
	}
	return "leave the column out, columns that can be read are " + listed(names)
}

// comparedFields returns the field ids that the filter and d's equality deletes compare.
func (t *Table) comparedFields(d *dataFile) []int {
	ids := slices.Clone(t.filtered)
	if d != nil {
		for _, del := range d.equality {
			ids = append(ids, del.EqualityFieldIDs()...)
		}
	}
	return ids
}

// addCompared returns the path to field id, and fields, with another column if none of them contains it.
func (t *Table) addCompared(fields []ice.NestedField, id int) (predicate.Path, []ice.NestedField, error) {
	for i, f := range fields {
		if kids, leaf, ok := scan.PathTo(f, id); ok {
			return predicate.Path{Column: i, Kids: kids, Field: leaf}, fields, nil
		}
	}
	chain, ok := t.topLevelField(id)
	if !ok {
		return predicate.Path{}, nil, fmt.Errorf("field %d is in no schema of the table", id)
	}
	kids, leaf, _ := scan.PathTo(chain, id)
	return predicate.Path{Column: len(fields), Kids: kids, Field: leaf}, append(fields, chain), nil
}

// topLevelField returns the top-level field that contains field id, reduced to that field. A field that was dropped is looked up in
// older schemas.
func (t *Table) topLevelField(id int) (ice.NestedField, bool) {
	schemas := append([]*ice.Schema{t.whole}, t.table.Metadata().Schemas()...)
	slices.Reverse(schemas[1:]) // newest first
	for _, s := range schemas {
		for _, f := range s.Fields() {
			if only, ok := onlyField(f, id); ok {
				return only, true
			}
		}
	}
	return ice.NestedField{}, false
}

// onlyField returns f reduced to field id.
func onlyField(f ice.NestedField, id int) (ice.NestedField, bool) {
	if f.ID == id {
		f.Required = false // older files may lack a field that was dropped since
		return f, true
	}
	st, ok := f.Type.(*ice.StructType)
	if !ok {
		return f, false
	}
	for _, kid := range st.FieldList {
		if only, ok := onlyField(kid, id); ok {
			f.Type = &ice.StructType{FieldList: []ice.NestedField{only}}
			return f, true
		}
	}
	return f, false
}
