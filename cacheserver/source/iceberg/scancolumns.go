// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"fmt"
	"slices"

	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/predicate"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
)

// scanColumns describes how the rows of one data file become rows of the table: first the served columns, then those that only filter
// and deletes compare.
type scanColumns struct {
	projection *parquet.Projection
	served     int
	paths      map[int]predicate.Path // locates the fields that filter and deletes compare, by field id
	lineage    map[int]int            // indices of the columns of row lineage, by field id
}

// columnsOf returns the scanColumns of a data file. d may be nil for a file without deletes in a table without identity partitions.
func (t *Table) columnsOf(f *parquet.Footer, d *dataFile) (*scanColumns, error) {
	w := &scanColumns{served: len(t.fields), paths: map[int]predicate.Path{}, lineage: map[int]int{}}
	fields := slices.Clone(t.fields)
	ids, err := t.comparedFields(d)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if _, ok := w.paths[id]; ok {
			continue
		}
		if fields, err = w.addCompared(t, fields, id); err != nil {
			return nil, fmt.Errorf("data file %s: %scompare its rows: %w", f.URI, d.comparing(id), err)
		}
	}
	for i, f := range fields {
		if ice.IsMetadataColumn(f.ID) {
			w.lineage[f.ID] = i
		}
	}
	missing := sources{partition: t.partition(d), defaults: t.defaults}.value
	if w.projection, err = parquet.NewProjection(f, fields, missing, t.properties); err != nil {
		return nil, fmt.Errorf("%w: %s", err, t.readable(func(field ice.NestedField) error {
			_, err := parquet.NewProjection(f, []ice.NestedField{field}, missing, t.properties)
			return err
		}))
	}
	return w, nil
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
func (t *Table) comparedFields(d *dataFile) ([]int, error) {
	var ids []int
	if t.filter != nil {
		var err error
		if ids, err = ice.ExtractFieldIDs(t.filter); err != nil {
			return nil, fmt.Errorf("columns of the filter: %w", err)
		}
	}
	if d != nil {
		for _, del := range d.equality {
			ids = append(ids, del.EqualityFieldIDs()...)
		}
	}
	return ids, nil
}

// addCompared sets the path of field id, and appends a column to fields if none of them contains it.
func (w *scanColumns) addCompared(t *Table, fields []ice.NestedField, id int) ([]ice.NestedField, error) {
	for i, f := range fields {
		if kids, leaf, ok := pathTo(f, id); ok {
			w.paths[id] = predicate.Path{Column: i, Kids: kids, Field: leaf}
			return fields, nil
		}
	}
	chain, ok := t.topLevelField(id)
	if !ok {
		return nil, fmt.Errorf("field %d is in no schema of the table", id)
	}
	kids, leaf, _ := pathTo(chain, id)
	w.paths[id] = predicate.Path{Column: len(fields), Kids: kids, Field: leaf}
	return append(fields, chain), nil
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

// pathTo returns the indices that lead from f through structs to field id.
func pathTo(f ice.NestedField, id int) (kids []int, leaf ice.NestedField, ok bool) {
	if f.ID == id {
		return nil, f, true
	}
	st, isStruct := f.Type.(*ice.StructType)
	if !isStruct {
		return nil, f, false
	}
	for i, kid := range st.FieldList {
		if rest, leaf, ok := pathTo(kid, id); ok {
			return append([]int{i}, rest...), leaf, true
		}
	}
	return nil, f, false
}
