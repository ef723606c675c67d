// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	ice "github.com/apache/iceberg-go"
)

// TestServedTypes checks that types without an Arrow type of their own are served as others at any level of nesting.
func TestServedTypes(t *testing.T) {
	binaries := arrow.StructOf(arrow.Field{Name: "metadata", Type: arrow.BinaryTypes.Binary}, arrow.Field{Name: "value", Type: arrow.BinaryTypes.Binary})
	for name, tt := range map[string]struct {
		of   ice.Type
		want arrow.DataType
	}{
		"variant": {ice.VariantType{}, binaries}, "geometry": {ice.GeometryType{}, arrow.BinaryTypes.Binary}, "geography": {ice.GeographyType{}, arrow.BinaryTypes.Binary},
	} {
		t.Run(name, func(t *testing.T) {
			for of, want := range map[ice.Type]arrow.DataType{
				tt.of: tt.want,
				&ice.StructType{FieldList: []ice.NestedField{{ID: 2, Name: "x", Type: tt.of}}}:                                arrow.StructOf(arrow.Field{Name: "x", Type: tt.want, Nullable: true}),
				&ice.ListType{ElementID: 2, Element: tt.of}:                                                                   arrow.ListOf(tt.want),
				&ice.MapType{KeyID: 2, KeyType: ice.PrimitiveTypes.Int64, ValueID: 3, ValueType: tt.of, ValueRequired: false}: arrow.MapOf(arrow.PrimitiveTypes.Int64, tt.want),
			} {
				got, err := (&Table{}).fieldOf(ice.NestedField{ID: 1, Name: "c", Type: of})
				if err != nil || !arrow.TypeEqual(got.Type, want) {
					t.Errorf("%s is served as %s, %v, want %s", of, got.Type, err, want)
				}
			}
		})
	}
}
