// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"fmt"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
	"github.com/kubeflow/datacache/cacheserver/predicate"
)

// field is a column that a clause can name.
type field struct {
	column.Field
	name string // full name: the names of the structs that contain it and its own, joined by dots
	hint string // why filters can't use the column; empty if they can
}

// test returns a test of the column.
func (f *field) test(op syntax.Operator, values ...column.Value) predicate.Test {
	return predicate.Test{Field: f.Field, Op: op, Values: values}
}

// appendFields appends fields and their nested fields; parents is the prefix of their names. within describes the list or map that
// contains them, if any.
func appendFields(all []*field, parents string, fields []column.Field, within string) []*field {
	for _, f := range fields {
		own := &field{Field: f, name: parents + f.Name, hint: within}
		all = append(all, own)
		inner := within
		switch f.Type.ID() {
		case arrow.LIST, arrow.FIXED_SIZE_LIST:
			inner = "it lies within a list"
		case arrow.MAP:
			inner = "it lies within a map"
		case arrow.STRUCT:
			if within == "" && len(f.Kids) > 0 {
				own.hint = fmt.Sprintf("name one of its fields, such as %s.%s", own.name, f.Kids[0].Name)
			}
		}
		if own.hint == "" && !f.Comparable() {
			own.hint = "values of this type cannot be compared"
		}
		all = appendFields(all, own.name+".", f.Kids, inner)
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
