// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package filter turns the text of a SQL WHERE clause into an Iceberg expression.
//
// Package syntax reads the text and says what the language is. Columns of dates, times, timestamps and UUIDs take their
// literals as plain strings too. A timestamp without a zone counts as UTC on a column with one.
//
// The meaning is SQL's: a comparison with NULL is neither true nor false, and only rows for which the whole
// clause is true are selected. IS NULL and IS NAN are always true or false; NULL is not NaN. Comparisons
// with NaN follow IEEE 754: only <> holds. A number is rounded to the nearest value of a float or double
// column; everything else must fit its column exactly or is refused.
package filter

import (
	"github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
)

// Parse parses the text and binds its names and literals to the schema. A blank text selects every row.
// Errors are *syntax.Error: they name the place in the text, the column, its type and the literal.
//
// The expression is unbound and has no NOT. It is true for exactly the rows that the clause selects, for a
// reader that takes a comparison with NULL as unknown and for one that takes it as false; where Iceberg
// counts NULL as unequal, it is excluded. So files may be pruned by it and rows filtered.
func Parse(text string, schema *iceberg.Schema) (iceberg.BooleanExpression, error) {
	parsed, err := syntax.Parse(text)
	if err != nil {
		return nil, err
	}
	b := binder{text: text, columns: columnsOf(schema)}
	root, err := b.bind(parsed)
	if err != nil {
		return nil, err
	}
	return selects(root, true), nil
}
