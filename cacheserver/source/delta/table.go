// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/predicate"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
	"github.com/kubeflow/datacache/cacheserver/source/scan"
)

// keptLimit bounds the cached deletion vectors of a table, in bytes.
const keptLimit = 64 << 20

// table is a version of a table with the columns and the filter of a selection.
type table struct {
	*scan.Table
	pin        *Pin
	schema     *schema
	partitions []column.Field
	files      *scan.Lazy[map[string]*file] // by URI
	kept       *scan.Cache[[]byte]          // by URI of the data file
}

// newTable returns the version that a pin names; it reads nothing.
func newTable(store *objstore.Store, pin *Pin, selection scan.Selection) (*table, error) {
	t := &table{Table: scan.New(store), pin: pin, files: scan.NewLazy[map[string]*file]()}
	t.kept = scan.NewCache(keptLimit, func(b []byte) int64 { return int64(len(b)) + 64 })
	t.File, t.ByName = t.file, pin.Mapping != byID
	var err error
	if t.schema, err = parseSchema(&pin.Table, pin.Mapping, selection.Columns); err != nil {
		return nil, err
	}
	for _, f := range t.schema.fields {
		if slices.Contains(pin.Table.Partitions, f.Name) {
			t.partitions = append(t.partitions, f)
		}
	}
	if t.ByName {
		t.Names = t.schema.names
	}
	return t, t.Choose(t.schema.fields, t.partitions, nil, selection)
}

// planned returns the files of a state that may have selected rows, in the order of their rows: by time of modification, then by URI.
func (t *table) planned(s *state) ([]*scan.File, error) {
	var files []*scan.File
	for _, f := range sorted(s) {
		described, err := t.describe(f)
		if err != nil {
			return nil, err
		}
		if t.Filter.MightMatch(func(field column.Field) predicate.Bounds { return described.Constant[field.ID] }) {
			files = append(files, described)
		}
	}
	return files, nil
}

func sorted(s *state) []*file {
	files := make([]*file, 0, len(s.files))
	for _, f := range s.files {
		files = append(files, f)
	}
	slices.SortFunc(files, func(a, b *file) int {
		return cmp.Or(cmp.Compare(a.ModificationTime, b.ModificationTime), strings.Compare(a.uri, b.uri))
	})
	return files
}

// file returns the description of a split's data file. If nothing in the log but the schema applies to it, the log is not read.
func (t *table) file(ctx context.Context, s source.Split) (*scan.File, error) {
	if s.Exact && s.Deleted == 0 && t.Filter == nil && len(t.partitions) == 0 {
		return &scan.File{Columns: func(f *parquet.Footer) (*scan.Columns, error) { return t.ColumnsOf(f, nil) }}, nil
	}
	files, err := t.files.Get(ctx, func(ctx context.Context) (map[string]*file, error) {
		state, err := t.pin.replay(ctx, t.Store)
		if err != nil {
			return nil, err
		}
		files := make(map[string]*file, len(state.files))
		for key, f := range state.files {
			files[key.uri] = f
		}
		return files, nil
	})
	if err != nil {
		return nil, err
	}
	f, ok := files[s.File]
	if !ok {
		return nil, fmt.Errorf("data file %s: version %d of %s does not have it: the split is of another table or version", s.File, t.pin.Version, t.pin.URI)
	}
	return t.describe(f)
}

// describe describes a data file.
func (t *table) describe(f *file) (*scan.File, error) {
	values, err := t.partitionValues(f)
	if err != nil {
		return nil, fmt.Errorf("data file %s: %w", f.uri, err)
	}
	rows := int64(0)
	d := &scan.File{
		Split: source.Split{File: f.uri, FileSize: f.Size, Exact: true}, Rows: f.rows(), Constant: scan.Constants(values),
		Columns: func(footer *parquet.Footer) (*scan.Columns, error) {
			rows = footer.Total()
			return t.ColumnsOf(footer, values)
		},
	}
	if v := f.Vector; v != nil {
		d.Deletes = func(ctx context.Context, _ *scan.Columns) (scan.Deletes, error) {
			keep, err := t.kept.Get(ctx, f.uri, func(ctx context.Context) ([]byte, error) { return v.keep(ctx, t.Store, t.pin.URI, rows) })
			if err != nil {
				err = fmt.Errorf("deletion vector of data file %s: %w", f.uri, err)
			}
			return scan.Deletes{Keep: keep}, err
		}
	}
	return d, nil
}

// partitionValues returns the values of the partition columns for a file; nil is null.
func (t *table) partitionValues(f *file) (map[int]*column.Value, error) {
	values := make(map[int]*column.Value, len(t.partitions))
	for _, field := range t.partitions {
		text, ok := f.PartitionValues[t.schema.physical[field.ID]]
		if !ok {
			return nil, fmt.Errorf("add.partitionValues has no value for column %q: restore the log", field.Name)
		}
		values[field.ID] = nil
		if text == nil || *text == "" {
			continue
		}
		v, reason := partitionValue(*text, field.Type)
		if reason != "" {
			return nil, fmt.Errorf("add.partitionValues has %q for column %q of type %s: %s: leave the column out", *text, field.Name, field.TypeName, reason)
		}
		values[field.ID] = &v
	}
	return values, nil
}

// partitionValue parses the value of a partition column, or returns the reason why it is none. Times without a zone are in UTC.
func partitionValue(text string, t arrow.DataType) (column.Value, string) {
	l := syntax.Literal{Kind: syntax.NumberLiteral, Value: strings.ToLower(text)} // Java writes 1.0E10
	switch t := t.(type) {
	case *arrow.StringType:
		return column.BytesValue(text), ""
	case *arrow.BinaryType:
		return column.Value{}, "writers of Delta differ in how they write bytes"
	case *arrow.BooleanType:
		if l.Kind, l.Value = syntax.BoolLiteral, strings.ToUpper(text); l.Value != "TRUE" && l.Value != "FALSE" {
			return column.Value{}, "want true or false"
		}
	case *arrow.Date32Type:
		l = syntax.Literal{Kind: syntax.DateLiteral, Value: text}
	case *arrow.TimestampType:
		l = syntax.Literal{Kind: syntax.TimestampLiteral, Value: text}
		if v, reason := column.Parse(l, t); reason == "" || t.TimeZone == "" {
			return v, reason
		}
		l.Value += "Z"
	}
	return column.Parse(l, t)
}
