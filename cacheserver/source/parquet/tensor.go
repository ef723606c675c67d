// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"encoding/json"
	"regexp"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
)

// Keys of the metadata of a field whose type is an extension of Arrow.
const (
	extensionName     = "ARROW:extension:name"
	extensionMetadata = "ARROW:extension:metadata"
)

// tensorName is the extension of Arrow for lists of fixed size that are tensors.
const tensorName = "arrow.fixed_shape_tensor"

// arrays matches the extensions of the library datasets for arrays of 2 to 5 dimensions, which it stores as lists within lists.
var arrays = regexp.MustCompile(`^datasets\..*\.Array[2-5]DExtensionType$`)

// refineTensor refines a column by the extension that its writer had. An extension that does not fit the column adds nothing.
func (c *fileColumn) refineTensor(name, metadata string) {
	switch {
	case name == tensorName && isTensor(metadata, int64(c.size)):
		c.tensor = metadata
	case arrays.MatchString(name):
		var description []json.RawMessage // shape and type of the values
		var shape []*int32                // nil: lengths differ
		if json.Unmarshal([]byte(metadata), &description) == nil && len(description) > 0 && json.Unmarshal(description[0], &shape) == nil {
			c.setShape(shape)
		}
	}
}

// setShape sets the lengths of lists within each other, if they are as many as the dimensions of a shape.
func (c *fileColumn) setShape(shape []*int32) {
	lists := []*fileColumn{}
	for at := c; at.field.Type.ID() == arrow.LIST && len(at.kids) == 1; at = at.kids[0] {
		lists = append(lists, at)
	}
	if len(lists) != len(shape) {
		return
	}
	for i, size := range shape {
		if size != nil {
			lists[i].size = max(*size, 0)
		}
	}
}

// isTensor reports whether metadata describes tensors of some values, as clients require it of arrow.fixed_shape_tensor.
func isTensor(metadata string, values int64) bool {
	var tensor struct {
		Shape       []int64  `json:"shape"`
		Permutation []int    `json:"permutation"`
		Names       []string `json:"dim_names"`
	}
	if json.Unmarshal([]byte(metadata), &tensor) != nil || len(tensor.Shape) == 0 {
		return false
	}
	product := int64(1)
	for _, size := range tensor.Shape {
		if size <= 0 || product > values/size {
			return false
		}
		product *= size
	}
	places := slices.Sorted(slices.Values(tensor.Permutation))
	for i, place := range places {
		if place != i {
			return false
		}
	}
	dimensions := len(tensor.Shape)
	return product == values && (places == nil || len(places) == dimensions) && (tensor.Names == nil || len(tensor.Names) == dimensions)
}

// tensorMetadata is the metadata of a field of tensors; none if they are plain lists.
func (c *fileColumn) tensorMetadata() arrow.Metadata {
	if c.tensor == "" {
		return arrow.Metadata{}
	}
	return arrow.NewMetadata([]string{extensionName, extensionMetadata}, []string{tensorName, c.tensor})
}
