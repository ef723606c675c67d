// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scan_test

import (
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/source/scan"
)

// TestDepth selects columns that are nested as deep as pyarrow reads in a stream, and one level deeper.
func TestDepth(t *testing.T) {
	for kind, wrap := range map[string]func(arrow.DataType) arrow.DataType{
		"structs": func(t arrow.DataType) arrow.DataType { return arrow.StructOf(arrow.Field{Name: "f", Type: t}) },
		"lists":   func(t arrow.DataType) arrow.DataType { return arrow.ListOf(t) },
	} {
		deep := arrow.PrimitiveTypes.Int64
		for range 63 {
			deep = wrap(deep)
		}
		fields := column.FieldsOf([]arrow.Field{{Name: "deep", Type: deep}, {Name: "deeper", Type: wrap(deep)}})
		choose := func(columns ...string) error {
			return scan.New(nil).Choose(fields, nil, nil, scan.Selection{Columns: columns})
		}
		if err := choose("deep"); err != nil {
			t.Errorf("63 %s: %v", kind, err)
		}
		if err := choose(); err == nil || !strings.Contains(err.Error(), `column "deeper": it has 65 levels`) {
			t.Errorf("64 %s: error %v, want one that names the column and its levels", kind, err)
		}
	}
}
