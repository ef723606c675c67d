// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
	"github.com/kubeflow/datacache/cacheserver/source/scan"
)

// table is a version of the files with the columns and the filter of a selection.
type table struct {
	*scan.Table
	pin        *Pin
	partitions []column.Field // the last columns: those of folder names
}

func newTable(store *objstore.Store, pin *Pin) *table {
	t := &table{Table: scan.New(store), pin: pin}
	t.ByName = true
	t.File = func(_ context.Context, s source.Split) (*scan.File, error) { return t.file(s.File) }
	return t
}

// choose sets the columns and the filter. The last columns of schema, which partitions names, are those of folder names.
func (t *table) choose(schema *arrow.Schema, partitions []string, selection scan.Selection) error {
	all := column.FieldsOf(schema.Fields())
	own := all[:len(all)-len(partitions)]
	t.partitions = all[len(own):]
	t.Names = parquet.NamesOf(own)
	metadata := schema.Metadata()
	return t.Choose(all, t.partitions, &metadata, selection)
}

// file describes a data file.
func (t *table) file(uri string) (*scan.File, error) {
	f := &scan.File{Split: source.Split{File: uri, FileSize: -1, Exact: true}, Rows: -1}
	var values map[int]*column.Value
	if len(t.partitions) > 0 {
		var err error
		if values, err = partitionValues(t.pin.relative(uri), t.partitions); err != nil {
			return nil, err
		}
		f.Constant = scan.Constants(values)
	}
	f.Columns = func(footer *parquet.Footer) (*scan.Columns, error) { return t.ColumnsOf(footer, values) }
	return f, nil
}
