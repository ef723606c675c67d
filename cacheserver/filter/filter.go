// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package filter compiles the text of a SQL WHERE clause into an Iceberg expression.
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
	"github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
)

// Parse parses the text and binds its names and literals to the schema. A blank text selects every row. Errors are *syntax.Error:
// they name the position in the text, the column, its type and the literal.
//
// The expression is unbound and has no NOT. It is true for exactly the rows that the clause selects, whether the reader evaluates a
// comparison with NULL to unknown or to false; where Iceberg counts NULL as unequal, NULL is excluded explicitly. So the expression
// can both prune files and filter rows.
func Parse(text string, schema *iceberg.Schema) (iceberg.BooleanExpression, error) {
	parsed, err := syntax.Parse(text)
	if err != nil {
		return nil, err
	}
	b := binder{text: text, columns: columnsOf(schema)}
	if name, ok := twin(b.columns); ok {
		return nil, syntax.ErrorAt(text, 0, "the table has two columns named %q, so no filter can be bound: rename one of them", name)
	}
	root, err := b.bind(parsed)
	if err != nil {
		return nil, err
	}
	return selects(root, true), nil
}
