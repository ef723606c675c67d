// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	ice "github.com/apache/iceberg-go"
)

// fieldPath leads to a field: a column of the projection, then children of structs.
type fieldPath struct {
	column int
	kids   []int
	field  ice.NestedField
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

// anyNull reports whether row i of one of the arrays is null.
func anyNull(arrays []arrow.Array, i int) bool {
	for _, a := range arrays {
		if a.IsNull(i) {
			return true
		}
	}
	return false
}
