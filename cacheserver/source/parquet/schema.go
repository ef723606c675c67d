// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

// ArrowSchema returns the Arrow schema in which fields are served: 32-bit offsets, timestamptz as timestamp[us, UTC], uuid as the
// arrow.uuid extension (like pyarrow and pyiceberg), variants as structs of their two binaries, geometries and geographies as their WKB;
// no metadata.
func ArrowSchema(fields []ice.NestedField, properties ice.Properties) (*arrow.Schema, error) {
	out := make([]arrow.Field, len(fields))
	for i, f := range fields {
		dt, err := ArrowType(f, properties)
		if err != nil {
			return nil, err
		}
		out[i] = arrow.Field{Name: f.Name, Type: dt, Nullable: !f.Required}
	}
	return arrow.NewSchema(out, nil), nil
}

// ArrowType is the type in which a column is served. If the type is not supported, the error names the column.
func ArrowType(f ice.NestedField, properties ice.Properties) (arrow.DataType, error) {
	dt, err := table.TypeToArrowTypeWithOptions(servedType(f.Type), table.ArrowSchemaOptions{TableProperties: properties})
	if err != nil {
		return nil, fmt.Errorf("column %q: type %s has no Arrow type: %w", f.Name, f.Type, err)
	}
	return withoutMetadata(dt), nil
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
