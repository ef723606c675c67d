// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package syntax reads the text of a SQL WHERE clause into a tree, with no knowledge of any table.
//
// The language: comparisons of a column with a literal (= == != <> < <= > >=, the literal on either side),
// [NOT] IN, [NOT] BETWEEN, [NOT] LIKE with a prefix pattern, IS [NOT] NULL, IS [NOT] NAN, a boolean column
// by itself, TRUE, FALSE, AND, OR, NOT and parentheses. Column names are case-sensitive, bare, "quoted" or
// `back-quoted`, and reach into structs with dots. Literals are numbers, 'strings', TRUE and FALSE,
// X'0a' bytes, and DATE, TIME, TIMESTAMP or UUID before a string.
//
// Admission of Kubernetes objects and the cache server share it, so that a filter that can't be read is refused before anything runs,
// with the words that the cache server would have.
package syntax

// Limits on the text, so that input can exhaust neither memory nor stack.
const (
	maxLength = 64 << 10 // bytes, of the text and of its canonical form
	maxDepth  = 200      // parentheses within parentheses
)

// Canonical is the text in one fixed form: the same for texts that differ in white space, letter case of
// keywords, needless parentheses, quotes around names or the side of the literal. It needs no schema, so
// it does not know whether columns exist and literals fit. Its result is its own canonical form.
func Canonical(text string) (string, error) {
	parsed, err := Parse(text)
	if err != nil {
		return "", err
	}
	return format(parsed), nil
}
