// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"context"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"github.com/kubeflow/datacache/cacheserver/objstore"
)

// ReadNames parses the footer of an open file whose columns are known by their names alone. No column has a field id before Named. The
// types are those that the writer had in Arrow, if the file says so and Parquet's own types allow it.
func ReadNames(ctx context.Context, f *objstore.File) (*Footer, error) {
	footer, err := readFooter(ctx, f, func(m *pqarrow.SchemaManifest) ([]*fileColumn, error) {
		columns := columnsOf(m)
		assign(columns, nil)
		markTwins(columns, map[int]*fileColumn{})
		return columns, nil
	})
	if err != nil {
		return nil, err
	}
	refine(footer.columns, footer.meta.KeyValueMetadata())
	return footer, nil
}

// Named returns the footer with the field ids that names assigns, whichever ids the file has. f is not changed.
func (f *Footer) Named(names NameMapping) *Footer {
	named, columns := *f, cloned(f.columns)
	assign(columns, names)
	named.setColumns(columns)
	return &named
}

func cloned(columns []*fileColumn) []*fileColumn {
	out := slices.Clone(columns)
	for i, c := range out {
		own := *c
		own.kids = cloned(c.kids)
		out[i] = &own
	}
	return out
}

// Column is a top-level column of a file.
type Column struct {
	// Field is the column as it is served without a table that says otherwise: INT96 as timestamp[us], list elements named "element",
	// without metadata except that of tensors.
	arrow.Field
	Problem error // why it cannot be read; nil: it can
}

// Columns returns the file's columns in their order.
func (f *Footer) Columns() []Column {
	out := make([]Column, len(f.columns))
	for i, c := range f.columns {
		out[i] = Column{Field: f.served(c), Problem: c.problem()}
		out[i].Metadata = c.tensorMetadata()
	}
	return out
}

// problem is why a column or a part of it cannot be read.
func (c *fileColumn) problem() error {
	if c.unreadable != nil {
		return c.unreadable
	}
	for _, kid := range c.kids {
		if err := kid.problem(); err != nil {
			return err
		}
	}
	return nil
}

func (f *Footer) served(c *fileColumn) arrow.Field {
	out := arrow.Field{Name: c.name, Type: c.field.Type, Nullable: c.field.Nullable}
	kids := make([]arrow.Field, len(c.kids))
	for i, kid := range c.kids {
		kids[i] = f.served(kid)
	}
	switch c.field.Type.(type) {
	case *arrow.StructType:
		out.Type = arrow.StructOf(kids...)
	case *arrow.MapType:
		if len(kids) == 2 { // a map of keys alone can't be read
			out.Type = arrow.MapOfFields(kids[0], kids[1])
		}
	case *arrow.ListType:
		if out.Type = arrow.ListOfField(kids[0]); c.size > 0 {
			out.Type = arrow.FixedSizeListOfField(c.size, kids[0])
		}
	case *arrow.BinaryType:
		if c.leaf >= 0 && isText(f.meta.Schema.Column(c.leaf).LogicalType()) {
			out.Type = arrow.BinaryTypes.String
		}
	default:
		if c.origin != nil {
			out.Type = c.origin
		}
		if c.leaf >= 0 && f.meta.Schema.Column(c.leaf).PhysicalType() == parquet.Types.Int96 {
			out.Type = &arrow.TimestampType{Unit: arrow.Microsecond}
		}
	}
	return out
}

// isText reports whether values of a type that pqarrow reads as binary are text.
func isText(t schema.LogicalType) bool {
	return t.Equals(schema.JSONLogicalType{}) || t.Equals(schema.EnumLogicalType{})
}
