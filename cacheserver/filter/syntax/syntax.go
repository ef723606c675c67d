// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package syntax parses the text of a SQL WHERE clause into a tree. It knows nothing of schemas.
//
// The language: comparisons of a column with a literal (= == != <> < <= > >=, the literal on either side), [NOT] IN, [NOT] BETWEEN,
// [NOT] LIKE with a prefix pattern, IS [NOT] NULL, IS [NOT] NAN, a boolean column by itself, TRUE, FALSE, AND, OR, NOT and
// parentheses. Column names are case-sensitive; they are bare, "quoted" or `back-quoted`, and dots select fields of structs. Literals
// are numbers, 'strings', TRUE and FALSE, X'0a' bytes, and strings prefixed by DATE, TIME, TIMESTAMP or UUID.
//
// The admission webhook and the cache server share this package, so that an invalid filter is rejected before any pod is created,
// with the same message that the cache server would give.
package syntax

// Limits on the text, so that no input exhausts memory or the stack.
const (
	maxLength = 64 << 10 // bytes of the text and of its canonical form
	maxDepth  = 200      // depth of nested parentheses
)

// Canonical returns the text in a canonical form: the same for texts that differ only in white space, case of keywords, redundant
// parentheses, quotes around names or the side of the literal. It needs no schema, so it does not check that columns exist and
// literals fit. Canonical is idempotent.
func Canonical(text string) (string, error) {
	parsed, err := Parse(text)
	if err != nil {
		return "", err
	}
	return format(parsed), nil
}
