// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package column describes the columns of tables: the fields, their types and single values of them.
//
// What filters, statistics, deletes and columns of one value need to know of a type is one row of the table in types.go.
package column

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// Field is a column of a table, or a nested part of one. It is immutable.
type Field struct {
	ID       int
	Name     string
	Type     arrow.DataType // in which it is served
	TypeName string         // the table's name of the type, for messages
	Required bool
	Kids     []Field        // the fields of a struct, the element of a list, the key and the value of a map
	Variant  bool           // variants are served as structs of their two binaries
	Opaque   bool           // values cannot be compared, although those of Type can
	Metadata arrow.Metadata // of the column as it is served
}

// FieldsOf describes the fields of a schema. Their IDs, and those of their parts, count from 1, each field before its parts. Those of lists
// and maps are called element, key and value, as in Parquet, whatever Arrow calls them.
func FieldsOf(fields []arrow.Field) []Field {
	ids := 0
	return describe(fields, &ids)
}

func describe(fields []arrow.Field, ids *int) []Field {
	out := make([]Field, len(fields))
	for i, f := range fields {
		*ids++
		out[i] = Field{ID: *ids, Name: f.Name, Type: f.Type, TypeName: Name(f.Type), Required: !f.Nullable, Metadata: f.Metadata}
		switch t := f.Type.(type) {
		case *arrow.StructType:
			out[i].Kids = describe(t.Fields(), ids)
		case *arrow.ListType:
			out[i].Kids = describe([]arrow.Field{renamed(t.ElemField(), "element")}, ids)
		case *arrow.FixedSizeListType:
			out[i].Kids = describe([]arrow.Field{renamed(t.ElemField(), "element")}, ids)
		case *arrow.MapType:
			out[i].Kids = describe([]arrow.Field{renamed(t.KeyField(), "key"), renamed(t.ItemField(), "value")}, ids)
		}
	}
	return out
}

func renamed(f arrow.Field, name string) arrow.Field {
	f.Name = name
	return f
}

// Comparable reports whether values of the field can be compared.
func (f Field) Comparable() bool {
	_, ok := TypeOf(f.Type)
	return ok && !f.Opaque
}

// Only returns f reduced to field id; false if f does not contain it.
func (f Field) Only(id int) (Field, bool) {
	if f.ID == id {
		f.Required = false // older files may lack a field that was dropped since
		return f, true
	}
	if f.Type.ID() != arrow.STRUCT {
		return f, false
	}
	for _, kid := range f.Kids {
		if only, ok := kid.Only(id); ok {
			f.Kids = []Field{only}
			f.Type = arrow.StructOf(arrow.Field{Name: only.Name, Type: only.Type, Nullable: !only.Required})
			return f, true
		}
	}
	return f, false
}

// Path locates a field: the index of a column of a batch, then the indices of children of structs.
type Path struct {
	Column int
	Kids   []int
	Field  Field
}

// PathTo returns the path to field id from a column, f, through structs; false if there is none.
func PathTo(column int, f Field, id int) (Path, bool) {
	if f.ID == id {
		return Path{Column: column, Field: f}, true
	}
	if f.Type.ID() != arrow.STRUCT {
		return Path{}, false
	}
	for i, kid := range f.Kids {
		if p, ok := PathTo(column, kid, id); ok {
			p.Kids = append([]int{i}, p.Kids...)
			return p, true
		}
	}
	return Path{}, false
}

// Find returns the path to field id from the columns that fields describe, through structs; false if there is none.
func Find(fields []Field, id int) (Path, bool) {
	for i, f := range fields {
		if path, ok := PathTo(i, f, id); ok {
			return path, true
		}
	}
	return Path{}, false
}

// At returns the array of the field in a batch, and those of the structs that contain it: where one of them is null, so is the field.
func (p Path) At(columns []arrow.Array) (leaf arrow.Array, parents []arrow.Array) {
	leaf = columns[p.Column]
	for _, k := range p.Kids {
		parents = append(parents, leaf)
		leaf = leaf.(*array.Struct).Field(k)
	}
	return leaf, parents
}

// AnyNull reports whether row i is null in any of the arrays.
func AnyNull(arrays []arrow.Array, i int) bool {
	for _, a := range arrays {
		if a.IsNull(i) {
			return true
		}
	}
	return false
}
