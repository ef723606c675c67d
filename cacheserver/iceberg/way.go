// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/objstore"
)

// way is how the rows of one data file become rows of the table: the served
// columns come first, then those that only filter and deletes look at.
type way struct {
	projection *projection
	served     int
	paths      map[int]fieldPath // by field id, of the fields that filter and deletes look at
}

// fieldPath leads to a field: a column of the projection, then children of structs.
type fieldPath struct {
	column int
	kids   []int
	field  ice.NestedField
}

// wayOf builds the way of a data file. d may be nil for a file without deletes
// in a table without identity partitions.
func (t *Table) wayOf(f *footer, d *dataFile) (*way, error) {
	w := &way{served: len(t.fields), paths: map[int]fieldPath{}}
	fields := slices.Clone(t.fields)
	ids, err := t.looksAt(d)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if _, ok := w.paths[id]; ok {
			continue
		}
		if fields, err = w.add(t, fields, id); err != nil {
			return nil, fmt.Errorf("data file %s: %w", f.uri, err)
		}
	}
	w.projection, err = newProjection(f, fields, sources{partition: t.partition(d), defaults: t.defaults}, t.properties)
	return w, err
}

// looksAt returns the field ids that the filter and d's equality deletes compare.
func (t *Table) looksAt(d *dataFile) ([]int, error) {
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

// add finds field id in fields or adds a column for it.
func (w *way) add(t *Table, fields []ice.NestedField, id int) ([]ice.NestedField, error) {
	for i, f := range fields {
		if kids, leaf, ok := descend(f, id); ok {
			w.paths[id] = fieldPath{column: i, kids: kids, field: leaf}
			return fields, nil
		}
	}
	chain, ok := t.chain(id)
	if !ok {
		return nil, fmt.Errorf("field %d, which deletes or filter look at, is in no schema of the table", id)
	}
	kids, leaf, _ := descend(chain, id)
	w.paths[id] = fieldPath{column: len(fields), kids: kids, field: leaf}
	return append(fields, chain), nil
}

// chain returns the top-level field that field id is in, with nothing else in
// it. A field that was dropped is looked for in older schemas.
func (t *Table) chain(id int) (ice.NestedField, bool) {
	schemas := append([]*ice.Schema{t.schema}, t.table.Metadata().Schemas()...)
	slices.Reverse(schemas[1:]) // newest first
	for _, s := range schemas {
		for _, f := range s.Fields() {
			if only, ok := prune(f, id); ok {
				return only, true
			}
		}
	}
	return ice.NestedField{}, false
}

// prune returns f with only field id in it.
func prune(f ice.NestedField, id int) (ice.NestedField, bool) {
	if f.ID == id {
		f.Required = false // an older file may lack a field that was dropped since
		return f, true
	}
	st, ok := f.Type.(*ice.StructType)
	if !ok {
		return f, false
	}
	for _, kid := range st.FieldList {
		if only, ok := prune(kid, id); ok {
			f.Type = &ice.StructType{FieldList: []ice.NestedField{only}}
			return f, true
		}
	}
	return f, false
}

// descend returns the way from f to field id through structs.
func descend(f ice.NestedField, id int) (kids []int, leaf ice.NestedField, ok bool) {
	if f.ID == id {
		return nil, f, true
	}
	st, isStruct := f.Type.(*ice.StructType)
	if !isStruct {
		return nil, f, false
	}
	for i, kid := range st.FieldList {
		if rest, leaf, ok := descend(kid, id); ok {
			return append([]int{i}, rest...), leaf, true
		}
	}
	return nil, f, false
}

// partition returns the values of d's identity partition fields by the id of their
// source field (Iceberg spec, column projection): files that were added to a
// table need not hold these columns. A null partition value is a value.
func (t *Table) partition(d *dataFile) map[int]any {
	if d == nil {
		return nil
	}
	spec := t.table.Metadata().PartitionSpecByID(int(d.file.SpecID()))
	if spec == nil {
		return nil
	}
	values, sources := d.file.Partition(), map[int]any{}
	for _, pf := range spec.Fields() {
		if _, ok := pf.Transform.(ice.IdentityTransform); !ok || len(pf.SourceIDs) != 1 {
			continue
		}
		if v, ok := values[pf.FieldID]; ok {
			sources[pf.SourceIDs[0]] = v
		}
	}
	return sources
}

// partitioned reports whether some file may lack a column that its partition
// gives.
func (t *Table) partitioned() bool {
	for _, spec := range t.table.Metadata().PartitionSpecs() {
		for _, pf := range spec.Fields() {
			if _, ok := pf.Transform.(ice.IdentityTransform); ok {
				return true
			}
		}
	}
	return false
}

// hasPromotedDates reports whether the source of a partition field was a date in
// an older schema and is a timestamp now.
func (t *Table) hasPromotedDates() bool {
	isDate := func(s *ice.Schema, id int) bool {
		f, ok := s.FindFieldByID(id)
		_, date := f.Type.(ice.DateType)
		return ok && date
	}
	for _, spec := range t.table.Metadata().PartitionSpecs() {
		for _, pf := range spec.Fields() {
			for _, id := range pf.SourceIDs {
				wasDate := slices.ContainsFunc(t.table.Metadata().Schemas(), func(s *ice.Schema) bool { return isDate(s, id) })
				if wasDate && !isDate(t.schema, id) {
					return true
				}
			}
		}
	}
	return false
}

// ranges returns the byte ranges of the column chunks that are read, or of the
// pages of a section.
func (w *way) ranges(f *footer, s section) ([]objstore.Range, error) {
	var ranges []objstore.Range
	for _, leaf := range w.leaves() {
		r, err := f.chunk(s.group, leaf)
		if err != nil {
			return nil, err
		}
		if at, ok := s.pages[leaf]; ok {
			ranges = append(ranges, objstore.Range{Offset: at.Offset, Length: at.Length})
			r.Length = at.dictionary
		}
		ranges = append(ranges, r)
	}
	return ranges, nil
}

// leaves returns the Parquet columns that are read, in the file's order. It is
// never nil.
func (w *way) leaves() []int {
	leaves := make([]int, 0, len(w.projection.leaves))
	for leaf := range w.projection.leaves {
		leaves = append(leaves, leaf)
	}
	slices.Sort(leaves)
	return leaves
}

// at returns the field of a path in a batch, and the structs it is in: where one
// of them is null, so is the field.
func (p fieldPath) at(columns []arrow.Array) (leaf arrow.Array, parents []arrow.Array) {
	leaf = columns[p.column]
	for _, k := range p.kids {
		parents = append(parents, leaf)
		leaf = leaf.(*array.Struct).Field(k)
	}
	return leaf, parents
}
