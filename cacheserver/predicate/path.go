// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	ice "github.com/apache/iceberg-go"
)

// Path locates a field: the index of a column of the projection, then the indices of children of structs.
type Path struct {
	Column int
	Kids   []int
	Field  ice.NestedField
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
