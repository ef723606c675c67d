// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package syntax

import (
	"fmt"
	"strings"
)

// escapeCharacter is what Canonical escapes wildcards in prefixes with.
const escapeCharacter = "!"

// format writes a parsed tree in its canonical form.
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

// inParentheses puts parentheses around ANDs and ORs. There are never more of them than in the text: AND
// binds closer than OR, so only ORs within ANDs and either behind a NOT need them, as they did there.
func inParentheses(n Node) string {
	switch n.(type) {
	case And, Or:
		return "(" + format(n) + ")"
	}
	return format(n)
}

// infixNot tells whether the test's NOT stands in its middle.
func (t Test) infixNot() bool {
	switch t.Op {
	case In, Between, Prefix, IsNull, IsNaN:
		return true
	}
	return false
}

// format writes the test with not, which is "NOT " or empty, where the operator has it.
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

// String is the literal as it may be written in a clause.
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
