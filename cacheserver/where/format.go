// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package where

import (
	"fmt"
	"strings"
)

// escapeCharacter is what Canonical escapes wildcards in prefixes with.
const escapeCharacter = "!"

// format writes a parsed tree in its canonical form.
func format(n node) string {
	switch n := n.(type) {
	case andNode:
		return joinFormats(n.terms, " AND ", inParentheses)
	case orNode:
		return joinFormats(n.terms, " OR ", format)
	case constNode:
		return strings.ToUpper(fmt.Sprint(n.value))
	case test:
		return n.format("")
	case notNode:
		if t, ok := n.term.(test); ok && t.infixNot() {
			return t.format("NOT ")
		}
		return "NOT " + inParentheses(n.term)
	}
	return ""
}

func joinFormats(terms []node, separator string, format func(node) string) string {
	parts := make([]string, len(terms))
	for i, t := range terms {
		parts[i] = format(t)
	}
	return strings.Join(parts, separator)
}

// inParentheses puts parentheses around ANDs and ORs. There are never more of them than in the text: AND
// binds closer than OR, so only ORs within ANDs and either behind a NOT need them, as they did there.
func inParentheses(n node) string {
	switch n.(type) {
	case andNode, orNode:
		return "(" + format(n) + ")"
	}
	return format(n)
}

// infixNot tells whether the test's NOT stands in its middle.
func (t test) infixNot() bool {
	switch t.op {
	case in, between, prefix, isNull, isNaN:
		return true
	}
	return false
}

// format writes the test with not, which is "NOT " or empty, where the operator has it.
func (t test) format(not string) string {
	switch t.op {
	case isNull:
		return t.column.String() + " IS " + not + "NULL"
	case isNaN:
		return t.column.String() + " IS " + not + "NAN"
	case in:
		values := make([]string, len(t.args))
		for i, arg := range t.args {
			values[i] = arg.String()
		}
		return t.column.String() + " " + not + "IN (" + strings.Join(values, ", ") + ")"
	case between:
		return fmt.Sprintf("%s %sBETWEEN %s AND %s", t.column, not, t.args[0], t.args[1])
	case prefix:
		return fmt.Sprintf("%s %sLIKE %s", t.column, not, likePattern(t.args[0].value))
	}
	return fmt.Sprintf("%s %s %s", t.column, t.op, t.args[0])
}

// likePattern is the pattern, with its ESCAPE if it needs one, of a prefix.
func likePattern(value string) string {
	if !strings.ContainsAny(value, "%_") {
		return quote(value+"%", "'")
	}
	escaped := strings.NewReplacer(escapeCharacter, escapeCharacter+escapeCharacter,
		"%", escapeCharacter+"%", "_", escapeCharacter+"_").Replace(value)
	return quote(escaped+"%", "'") + " ESCAPE " + quote(escapeCharacter, "'")
}

// quote puts quotes around a value and doubles those within.
func quote(value, mark string) string {
	return mark + strings.ReplaceAll(value, mark, mark+mark) + mark
}

// String is the name as it may be written in a clause.
func (c column) String() string {
	parts := make([]string, len(c.parts))
	for i, part := range c.parts {
		parts[i] = part
		if !bare(part) {
			parts[i] = quote(part, `"`)
		}
	}
	return strings.Join(parts, ".")
}

// String is the literal as it may be written in a clause.
func (l literal) String() string {
	switch l.kind {
	case numberLiteral, boolLiteral:
		return l.value
	case bytesLiteral:
		return fmt.Sprintf("X'%X'", l.value)
	case stringLiteral:
		return quote(l.value, "'")
	}
	return string(l.kind) + " " + quote(l.value, "'")
}
