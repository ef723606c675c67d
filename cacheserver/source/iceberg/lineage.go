// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/column"
)

// firstWithLineage is the first table format version whose rows have an id and the sequence number of their last change.
const firstWithLineage = 3

// lineage lists the columns of row lineage, which are in no schema of a table.
func lineage() []ice.NestedField {
	return []ice.NestedField{ice.RowID(), ice.LastUpdatedSequenceNumber()}
}

// withLineage returns the schema of a table of a format version with the columns of row lineage, if it has any, except those whose name
// the schema uses.
func withLineage(schema *ice.Schema, version int) *ice.Schema {
	if version < firstWithLineage {
		return schema
	}
	fields := schema.Fields()
	for _, f := range lineage() {
		if !slices.ContainsFunc(fields, func(own ice.NestedField) bool { return own.Name == f.Name }) {
			fields = append(fields, f)
		}
	}
	return ice.NewSchemaWithIdentifiers(schema.ID, schema.IdentifierFieldIDs, fields...)
}

// inherit returns a function that replaces nulls in those of the fields that are columns of row lineage (Iceberg spec, Row Lineage); nil
// if none is. A file that was written before the table had row lineage has no first row id: both columns are then null.
func (d *dataFile) inherit(fields []column.Field) func(columns []arrow.Array, first int64) {
	rowID, sequence := -1, -1
	for i, f := range fields {
		switch f.ID {
		case ice.RowIDFieldID:
			rowID = i
		case ice.LastUpdatedSequenceNumberFieldID:
			sequence = i
		}
	}
	if max(rowID, sequence) < 0 {
		return nil
	}
	return func(columns []arrow.Array, first int64) {
		replace := func(at int, value func(row int) int64) {
			if at >= 0 {
				old := columns[at].(*array.Int64)
				columns[at] = inherited(old, d.firstRowID != nil, value)
				old.Release()
			}
		}
		replace(rowID, func(row int) int64 { return *d.firstRowID + first + int64(row) })
		replace(sequence, func(int) int64 { return d.sequence })
	}
}

// inherited returns a column with value instead of its nulls or, unless known is set, a column of nulls.
func inherited(old *array.Int64, known bool, value func(row int) int64) arrow.Array {
	if !known {
		return array.MakeArrayOfNull(memory.DefaultAllocator, old.DataType(), old.Len())
	}
	out := make([]int64, old.Len())
	copy(out, old.Int64Values())
	if old.NullN() > 0 {
		for i := range out {
			if old.IsNull(i) {
				out[i] = value(i)
			}
		}
	}
	data := array.NewData(old.DataType(), len(out), []*memory.Buffer{nil, memory.NewBufferBytes(arrow.Int64Traits.CastToBytes(out))}, nil, 0, 0)
	defer data.Release()
	return array.NewInt64Data(data)
}
