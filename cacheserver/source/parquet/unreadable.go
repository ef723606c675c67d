// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"fmt"

	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/arrow-go/v18/parquet/schema"
)

// unreadable maps the index of a top-level column of a file to the reason why it cannot be read.
type unreadable map[int]error

// plainTypes removes the logical types of the columns that arrow-go cannot represent, such as those with a logical type newer than
// arrow-go, so that the others can be read.
func plainTypes(meta *metadata.FileMetaData) unreadable {
	bad := unreadable{}
	elements := meta.FileMetaData.Schema
	root, one := *elements[0], int32(1)
	root.NumChildren = &one
	check := func(at, end int) (err error) { // of a schema with one column
		defer RecoverError(&err)
		node, err := schema.FromParquet(append(append(elements[:0:0], &root), elements[at:end]...))
		if err != nil {
			return err
		}
		_, err = pqarrow.NewSchemaManifest(schema.NewSchema(node.(*schema.GroupNode)), nil, nil)
		return err
	}
	for i, at := 0, 1; at < len(elements); i++ {
		end := at + 1
		for open := elements[at].GetNumChildren(); open > 0 && end < len(elements); end++ {
			open += elements[end].GetNumChildren() - 1
		}
		if err := check(at, end); err != nil {
			bad[i] = err
			for _, e := range elements[at:end] {
				if e.IsSetLogicalType() && e.GetLogicalType().CountSetFieldsLogicalType() == 0 {
					bad[i] = fmt.Errorf("the file's logical type of %s %q is not known here", physicalName(e.IsSetType(), e.GetType()), e.GetName())
				}
				e.LogicalType, e.ConvertedType = nil, nil
			}
		}
		at = end
	}
	return bad
}

// physicalName is the physical type of a schema element, which groups lack.
func physicalName(set bool, physical fmt.Stringer) string {
	if !set {
		return "group"
	}
	return physical.String()
}
