// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package syntax

import (
	"fmt"
	"strings"
)

// escapeCharacter escapes wildcards in the LIKE patterns that Canonical writes.
const escapeCharacter = "!"

// format formats a parsed tree in its canonical form.
func format(n Node) string {
	switch n := n.(type) {
	case And:
		return joinFormats(n.Terms, " AND ", inParentheses)
	case Or:
		return joinFormats(n.Terms, " OR ", format)
	case Const:
		return strings.ToUpper(fmt.Sprint(n.Value))
	case Test:
		return n.format("")
	case Not:
		if t, ok := n.Term.(Test); ok && t.infixNot() {
			return t.format("NOT ")
		}
		return "NOT " + inParentheses(n.Term)
	}
	return ""
}

func joinFormats(terms []Node, separator string, format func(Node) string) string {
	parts := make([]string, len(terms))
	for i, t := range terms {
		parts[i] = format(t)
	}
	return strings.Join(parts, separator)
}

// inParentheses formats a node, with parentheses if it is an AND or OR. The result never has more parentheses than the text: AND
// binds more tightly than OR, so only an OR within an AND and either of them after a NOT need them, and they had them in the text.
func inParentheses(n Node) string {
	switch n.(type) {
	case And, Or:
		return "(" + format(n) + ")"
	}
	return format(n)
}

// infixNot reports whether NOT is written inside the test, as in IS NOT NULL.
func (t Test) infixNot() bool {
	switch t.Op {
	case In, Between, Prefix, IsNull, IsNaN:
		return true
	}
	return false
}

// format formats the test. not is "NOT " or empty, and is put where the operator requires it.
func (t Test) format(not string) string {
	switch t.Op {
	case IsNull:
		return t.Column.String() + " IS " + not + "NULL"
	case IsNaN:
		return t.Column.String() + " IS " + not + "NAN"
	case In:
		values := make([]string, len(t.Args))
		for i, arg := range t.Args {
			values[i] = arg.String()
		}
		return t.Column.String() + " " + not + "IN (" + strings.Join(values, ", ") + ")"
	case Between:
		return fmt.Sprintf("%s %sBETWEEN %s AND %s", t.Column, not, t.Args[0], t.Args[1])
	case Prefix:
		return fmt.Sprintf("%s %sLIKE %s", t.Column, not, likePattern(t.Args[0].Value))
	}
	return fmt.Sprintf("%s %s %s", t.Column, t.Op, t.Args[0])
}

// likePattern returns the LIKE pattern of a prefix, with an ESCAPE clause if it needs one.
func likePattern(value string) string {
	if !strings.ContainsAny(value, "%_") {
		return quote(value+"%", "'")
	}
	escaped := strings.NewReplacer(escapeCharacter, escapeCharacter+escapeCharacter,
		"%", escapeCharacter+"%", "_", escapeCharacter+"_").Replace(value)
	return quote(escaped+"%", "'") + " ESCAPE " + quote(escapeCharacter, "'")
}

// quote encloses a value in quotes and doubles the quotes inside it.
func quote(value, mark string) string {
	return mark + strings.ReplaceAll(value, mark, mark+mark) + mark
}

// String formats the name as a clause can contain it.
func (c Column) String() string {
	parts := make([]string, len(c.Parts))
	for i, part := range c.Parts {
		parts[i] = part
		if !bare(part) {
			parts[i] = quote(part, `"`)
		}
	}
	return strings.Join(parts, ".")
}

// String formats the literal as a clause can contain it.
func (l Literal) String() string {
	switch l.Kind {
	case NumberLiteral, BoolLiteral:
		return l.Value
	case BytesLiteral:
		return fmt.Sprintf("X'%X'", l.Value)
	case StringLiteral:
		return quote(l.Value, "'")
	}
	return string(l.Kind) + " " + quote(l.Value, "'")
}
