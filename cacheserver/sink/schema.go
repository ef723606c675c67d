// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package sink

import (
	"slices"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/kubeflow/datacache/cacheserver/put/commit"
)

// icebergSchema returns the schema of a table for the columns of a dataset.
func icebergSchema(columns *arrow.Schema) (*ice.Schema, error) {
	for _, f := range columns.Fields() {
		if bad := inexact(f.Type); bad != nil {
			return nil, commit.Refused("column %.64q: Iceberg has no type for all values of %s: cast it, integers to int32 or int64, times to microseconds, and put it again", f.Name, bad)
		}
	}
	schema, err := table.ArrowSchemaToIcebergWithFreshIDs(columns, false)
	if err != nil {
		return nil, commit.Refused("columns: %w", err)
	}
	return schema, nil
}

// inexact returns a type in dt whose values Iceberg has no type for; nil if there is none.
func inexact(dt arrow.DataType) arrow.DataType {
	switch t := dt.(type) {
	case *arrow.BooleanType, *arrow.Int32Type, *arrow.Int64Type, *arrow.Float32Type, *arrow.Float64Type, *arrow.StringType, *arrow.LargeStringType,
		*arrow.BinaryType, *arrow.LargeBinaryType, *arrow.FixedSizeBinaryType, *arrow.Date32Type, *arrow.Decimal128Type:
		return nil
	case *arrow.Time64Type:
		if t.Unit == arrow.Microsecond {
			return nil
		}
	case *arrow.TimestampType:
		if t.Unit == arrow.Microsecond {
			return nil
		}
	case arrow.ExtensionType:
		if t.ExtensionName() == "arrow.uuid" {
			return nil
		}
	case arrow.NestedType:
		if t.ID() == arrow.LIST || t.ID() == arrow.LARGE_LIST || t.ID() == arrow.FIXED_SIZE_LIST || t.ID() == arrow.STRUCT || t.ID() == arrow.MAP {
			for _, f := range t.Fields() {
				if bad := inexact(f.Type); bad != nil {
					return bad
				}
			}
			return nil
		}
	}
	return dt
}

// matched returns the fields of a table for the columns of a dataset, with their ids, in the order of the columns.
func matched(of *ice.Schema, columns *arrow.Schema) (*ice.Schema, error) {
	want, err := icebergSchema(columns)
	if err != nil {
		return nil, err
	}
	fields, err := matchFields(of.AsStruct(), want.AsStruct(), "column ")
	if err != nil {
		return nil, err
	}
	return ice.NewSchema(of.ID, fields...), nil
}

// matchFields returns the fields of table for those of data.
func matchFields(of, data ice.StructType, path string) ([]ice.NestedField, error) {
	var fields []ice.NestedField
	for _, d := range data.FieldList {
		i := slices.IndexFunc(of.FieldList, func(f ice.NestedField) bool { return f.Name == d.Name })
		if i < 0 {
			return nil, commit.Refused("%s%q, of type %s: the table has no such column: add it to the table, or put the dataset without it", path, d.Name, d.Type)
		}
		f, err := matchField(of.FieldList[i], d, path+strconv.Quote(d.Name))
		if err != nil {
			return nil, err
		}
		fields = append(fields, f)
	}
	for _, f := range of.FieldList {
		if f.Required && !slices.ContainsFunc(data.FieldList, func(d ice.NestedField) bool { return f.Name == d.Name }) {
			return nil, commit.Refused("%s%q, of type %s: the table requires it, and the dataset has no such column", path, f.Name, f.Type)
		}
	}
	return fields, nil
}

// matchField returns the field of a table for one of a dataset.
func matchField(f, data ice.NestedField, path string) (ice.NestedField, error) {
	if f.Required && !data.Required {
		return f, commit.Refused("%s, of type %s: the table requires values, and the dataset may have nulls: make the field of the dataset's schema not nullable, or the column optional", path, data.Type)
	}
	differs := commit.Refused("%s: %s in the dataset, %s in the table: cast it and put it again", path, data.Type, f.Type)
	switch of := f.Type.(type) {
	case *ice.StructType:
		d, ok := data.Type.(*ice.StructType)
		if !ok {
			return f, differs
		}
		fields, err := matchFields(*of, *d, path+".")
		f.Type = &ice.StructType{FieldList: fields}
		return f, err
	case *ice.ListType:
		d, ok := data.Type.(*ice.ListType)
		if !ok {
			return f, differs
		}
		e, err := matchField(of.ElementField(), d.ElementField(), path+".element")
		f.Type = &ice.ListType{ElementID: e.ID, Element: e.Type, ElementRequired: e.Required}
		return f, err
	case *ice.MapType:
		d, ok := data.Type.(*ice.MapType)
		if !ok {
			return f, differs
		}
		k, err := matchField(of.KeyField(), d.KeyField(), path+".key")
		if err != nil {
			return f, err
		}
		v, err := matchField(of.ValueField(), d.ValueField(), path+".value")
		f.Type = &ice.MapType{KeyID: k.ID, KeyType: k.Type, ValueID: v.ID, ValueType: v.Type, ValueRequired: v.Required}
		return f, err
	}
	if !f.Type.Equals(data.Type) {
		return f, differs
	}
	return f, nil
}

// withIDs returns the columns with the ids of Iceberg's fields, which a Parquet file has too.
func withIDs(columns *arrow.Schema, of *ice.Schema) *arrow.Schema {
	return arrow.NewSchema(fieldsWithIDs(columns.Fields(), of.Fields()), nil)
}

func fieldsWithIDs(columns []arrow.Field, of []ice.NestedField) []arrow.Field {
	fields := make([]arrow.Field, len(columns))
	for i, c := range columns {
		fields[i] = fieldWithID(c, of[i])
	}
	return fields
}

func fieldWithID(c arrow.Field, of ice.NestedField) arrow.Field {
	c.Metadata = arrow.NewMetadata([]string{table.ArrowParquetFieldIDKey}, []string{strconv.Itoa(of.ID)})
	switch t := c.Type.(type) {
	case *arrow.StructType:
		c.Type = arrow.StructOf(fieldsWithIDs(t.Fields(), of.Type.(*ice.StructType).FieldList)...)
	case *arrow.ListType:
		c.Type = arrow.ListOfField(fieldWithID(t.ElemField(), of.Type.(*ice.ListType).ElementField()))
	case *arrow.LargeListType:
		c.Type = arrow.LargeListOfField(fieldWithID(t.ElemField(), of.Type.(*ice.ListType).ElementField()))
	case *arrow.FixedSizeListType: // Parquet has none, and pqarrow writes none with nulls
		c.Type = arrow.ListOfField(fieldWithID(t.ElemField(), of.Type.(*ice.ListType).ElementField()))
	case *arrow.MapType:
		m := of.Type.(*ice.MapType)
		c.Type = arrow.MapOfFields(fieldWithID(t.KeyField(), m.KeyField()), fieldWithID(t.ItemField(), m.ValueField()))
	}
	return c
}
