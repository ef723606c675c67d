// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package filter compiles the text of a SQL WHERE clause for the columns of a table.
//
// Package syntax parses the text and documents the language. Columns of dates, times, timestamps and UUIDs accept plain strings as
// literals. A literal of a timestamp has a zone, such as Z or +01:00, if and only if the column has one: engines differ in the zone that
// they assume for others.
//
// The meaning is SQL's: a comparison with NULL is neither true nor false, and only rows for which the whole clause is true are
// selected. IS NULL and IS NAN are always true or false; NULL is not NaN. Comparisons with NaN follow IEEE 754: only <> is true. A
// number is rounded to the nearest value of a float or double column; any other literal must fit its column exactly, or the clause is
// rejected.
package filter

import (
	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
	"github.com/kubeflow/datacache/cacheserver/predicate"
)

// Parse parses the text and binds its names and literals to fields. Nil selects every row, as a blank text does. Errors are
// *syntax.Error: they name the position in the text, the column, its type and the literal.
func Parse(text string, fields []column.Field) (*predicate.Filter, error) {
	parsed, err := syntax.Parse(text)
	if err != nil {
		return nil, err
	}
	b := binder{text: text, columns: appendFields(nil, "", fields, "")}
	if name, ok := twin(b.columns); ok {
		return nil, syntax.ErrorAt(text, 0, "the table has two columns named %q, so no filter can be bound: rename one of them", name)
	}
	root, err := syntax.Replace(parsed, b.bind)
	if err != nil {
		return nil, err
	}
	return predicate.Compile(root)
}
