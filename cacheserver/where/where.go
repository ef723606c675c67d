// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package where turns the text of a SQL WHERE clause into an Iceberg expression.
//
// The language: comparisons of a column with a literal (= == != <> < <= > >=, the literal on either side),
// [NOT] IN, [NOT] BETWEEN, [NOT] LIKE with a prefix pattern, IS [NOT] NULL, IS [NOT] NAN, a boolean column
// by itself, TRUE, FALSE, AND, OR, NOT and parentheses. Column names are case-sensitive, bare, "quoted" or
// `back-quoted`, and reach into structs with dots. Literals are numbers, 'strings', TRUE and FALSE,
// X'0a' bytes, and DATE, TIME, TIMESTAMP or UUID before a string, which those columns also take as plain
// strings. A timestamp without a zone counts as UTC on a column with one.
//
// The meaning is SQL's: a comparison with NULL is neither true nor false, and only rows for which the whole
// clause is true are selected. IS NULL and IS NAN are always true or false; NULL is not NaN. Comparisons
// with NaN follow IEEE 754: only <> holds. A number is rounded to the nearest value of a float or double
// column; everything else must fit its column exactly or is refused.
package where

import "github.com/apache/iceberg-go"

// Limits on the text, so that input can exhaust neither memory nor stack.
const (
	maxLength = 64 << 10 // bytes, of the text and of its canonical form
	maxDepth  = 200      // parentheses within parentheses
)

// Parse parses the text and binds its names and literals to the schema. A blank text selects every row.
// Errors are *Error: they name the place in the text, the column, its type and the literal.
//
// The expression is unbound and has no NOT. It is true for exactly the rows that the clause selects, for a
// reader that takes a comparison with NULL as unknown and for one that takes it as false; where Iceberg
// counts NULL as unequal, it is excluded. So files may be pruned by it and rows filtered.
func Parse(text string, schema *iceberg.Schema) (iceberg.BooleanExpression, error) {
	parsed, err := parse(text)
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

// Canonical is the text in one fixed form: the same for texts that differ in white space, letter case of
// keywords, needless parentheses, quotes around names or the side of the literal. It needs no schema, so
// it does not know whether columns exist and literals fit. Its result is its own canonical form.
func Canonical(text string) (string, error) {
	parsed, err := parse(text)
	if err != nil {
		return "", err
	}
	return format(parsed), nil
}
