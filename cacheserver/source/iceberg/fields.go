// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/kubeflow/datacache/cacheserver/column"
)

// fieldOf describes a column: 32-bit offsets, timestamptz as timestamp[us, UTC], uuid as the arrow.uuid extension (like pyarrow and
// pyiceberg), variants as structs of their two binaries, geometries and geographies as their WKB; no metadata. If its type is not
// supported, the error names it.
func (t *Table) fieldOf(f ice.NestedField) (column.Field, error) {
	dt, err := table.TypeToArrowTypeWithOptions(servedType(f.Type), table.ArrowSchemaOptions{TableProperties: t.properties})
	if err != nil {
		return column.Field{}, fmt.Errorf("column %q: type %s has no Arrow type: %w", f.Name, f.Type, err)
	}
	return fieldAs(f, withoutMetadata(dt)), nil
}

func (t *Table) fieldsOf(fields []ice.NestedField) ([]column.Field, error) {
	out := make([]column.Field, len(fields))
	for i, f := range fields {
		var err error
		if out[i], err = t.fieldOf(f); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// fieldAs describes a column that is served as type to.
func fieldAs(f ice.NestedField, to arrow.DataType) column.Field {
	out := column.Field{ID: f.ID, Name: f.Name, Type: to, TypeName: f.Type.String(), Required: f.Required}
	switch t := f.Type.(type) {
	case *ice.StructType:
		for i, kid := range t.FieldList {
			out.Kids = append(out.Kids, fieldAs(kid, to.(*arrow.StructType).Field(i).Type))
		}
	case *ice.ListType:
		out.Kids = []column.Field{fieldAs(t.ElementField(), to.(*arrow.ListType).Elem())}
	case *ice.MapType:
		of := to.(*arrow.MapType)
		out.Kids = []column.Field{fieldAs(t.KeyField(), of.KeyType()), fieldAs(t.ValueField(), of.ItemType())}
	case ice.VariantType:
		out.Variant = true
	case ice.GeometryType, ice.GeographyType:
		out.Opaque = true
	}
	return out
}

// arrowSchema returns the Arrow schema in which fields are served.
func arrowSchema(fields []column.Field) *arrow.Schema {
	out := make([]arrow.Field, len(fields))
	for i, f := range fields {
		out[i] = arrow.Field{Name: f.Name, Type: f.Type, Nullable: !f.Required}
	}
	return arrow.NewSchema(out, nil)
}

// servedType returns the type that is served for t: variants as structs of their two binaries, as they are stored unshredded, and
// shapes as their well-known binary (WKB).
func servedType(t ice.Type) ice.Type {
	switch t := t.(type) {
	case *ice.StructType:
		fields := slices.Clone(t.FieldList)
		for i := range fields {
			fields[i].Type = servedType(fields[i].Type)
		}
		return &ice.StructType{FieldList: fields}
	case *ice.ListType:
		list := *t
		list.Element = servedType(t.Element)
		return &list
	case *ice.MapType:
		m := *t
		m.KeyType, m.ValueType = servedType(t.KeyType), servedType(t.ValueType)
		return &m
	case ice.VariantType:
		return &ice.StructType{FieldList: []ice.NestedField{
			{Name: "metadata", Type: ice.PrimitiveTypes.Binary, Required: true}, {Name: "value", Type: ice.PrimitiveTypes.Binary, Required: true},
		}}
	case ice.GeometryType, ice.GeographyType:
		return ice.PrimitiveTypes.Binary
	}
	return t
}

// withoutMetadata returns dt without the field metadata of its children.
func withoutMetadata(dt arrow.DataType) arrow.DataType {
	switch dt := dt.(type) {
	case *arrow.StructType:
		fields := dt.Fields()
		for i := range fields {
			fields[i] = plainField(fields[i])
		}
		return arrow.StructOf(fields...)
	case *arrow.ListType:
		return arrow.ListOfField(plainField(dt.ElemField()))
	case *arrow.MapType:
		plain := arrow.MapOf(withoutMetadata(dt.KeyType()), withoutMetadata(dt.ItemType()))
		plain.KeysSorted = dt.KeysSorted
		plain.SetItemNullable(dt.ItemField().Nullable)
		return plain
	}
	return dt
}

func plainField(f arrow.Field) arrow.Field {
	return arrow.Field{Name: f.Name, Type: withoutMetadata(f.Type), Nullable: f.Nullable}
}
