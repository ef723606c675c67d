// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"fmt"
	"strings"

	"github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
)

// field is a column that a clause can name.
type field struct {
	name string // full name: the names of the structs that contain it and its own, joined by dots
	typ  iceberg.Type
	hint string // why filters can't use the column; empty if they can
}

// columnsOf lists the columns of a schema and the fields of structs by full name, in schema order.
func columnsOf(schema *iceberg.Schema) []*field {
	var all []*field
	for _, f := range schema.Fields() {
		all = appendFields(all, "", f, "")
	}
	return all
}

// appendFields appends a field and its nested fields; parents is the prefix of their names. within describes the list or map that
// contains them, if any.
func appendFields(all []*field, parents string, f iceberg.NestedField, within string) []*field {
	own := &field{name: parents + f.Name, typ: f.Type, hint: within}
	all = append(all, own)
	path := own.name + "."
	switch typ := f.Type.(type) {
	case *iceberg.StructType:
		for _, inner := range typ.FieldList {
			all = appendFields(all, path, inner, within)
		}
		if within == "" && len(typ.FieldList) > 0 {
			own.hint = fmt.Sprintf("name one of its fields, such as %s.%s", own.name, typ.FieldList[0].Name)
		}
	case *iceberg.ListType:
		all = appendFields(all, path, typ.ElementField(), "it lies within a list")
	case *iceberg.MapType:
		all = appendFields(all, path, typ.KeyField(), "it lies within a map")
		all = appendFields(all, path, typ.ValueField(), "it lies within a map")
	}
	if own.hint == "" && !filterable(f.Type) {
		own.hint = "values of this type cannot be compared"
	}
	return all
}

// twin returns a full name that two columns have.
func twin(columns []*field) (string, bool) {
	seen := make(map[string]bool, len(columns))
	for _, f := range columns {
		if seen[f.name] {
			return f.name, true
		}
		seen[f.name] = true
	}
	return "", false
}

// filterable reports whether literals of the type exist.
func filterable(t iceberg.Type) bool {
	switch t.(type) {
	case iceberg.BooleanType, iceberg.Int32Type, iceberg.Int64Type, iceberg.Float32Type, iceberg.Float64Type,
		iceberg.DecimalType, iceberg.DateType, iceberg.TimeType, iceberg.TimestampType, iceberg.TimestampTzType,
		iceberg.TimestampNsType, iceberg.TimestampTzNsType, iceberg.StringType, iceberg.BinaryType,
		iceberg.FixedType, iceberg.UUIDType:
		return true
	}
	return false
}

func isFloat(t iceberg.Type) bool {
	switch t.(type) {
	case iceberg.Float32Type, iceberg.Float64Type:
		return true
	}
	return false
}

// listed is the maximum number of columns that an error lists.
const listed = 40

// unknown formats the error for an unknown column: the existing columns and the one with the most similar name.
func unknown(name string, columns []*field) string {
	var names []string
	for _, f := range columns {
		if f.hint == "" {
			names = append(names, f.name)
		}
	}
	message := fmt.Sprintf("unknown column %q", syntax.Short(name))
	if near := nearest(name, names); near != "" {
		message += fmt.Sprintf(", did you mean %q?", near)
	}
	if len(names) == 0 {
		return message + "; there are no columns to filter by"
	}
	more := ""
	if len(names) > listed {
		names, more = names[:listed], fmt.Sprintf(" and %d more", len(names)-listed)
	}
	return message + "; the columns are " + strings.Join(names, ", ") + more
}

// nearest returns the name that differs only in letter case, or else the one with the smallest edit distance, which must be at most a
// third of the name's length.
func nearest(name string, names []string) string {
	best, least := "", len([]rune(name))/3+1
	for _, candidate := range names {
		if strings.EqualFold(candidate, name) {
			return candidate
		}
		if d := distance([]rune(name), []rune(candidate)); d < least {
			best, least = candidate, d
		}
	}
	return best
}

// distance is the edit distance (Levenshtein) between a and b.
func distance(a, b []rune) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i, x := range a {
		diagonal := row[0]
		row[0] = i + 1
		for j, y := range b {
			change := diagonal
			if x != y {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
