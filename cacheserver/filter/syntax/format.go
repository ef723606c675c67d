// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package syntax

import (
	"fmt"
	"slices"
	"strings"
)

// escapeCharacter escapes wildcards in the LIKE patterns that Canonical writes.
const escapeCharacter = "!"

// format formats a parsed tree in its canonical form.
func format(n Node) string {
	switch n := n.(type) {
	case Chain:
		if n.Or {
			return joined(n.Terms, " OR ", format)
		}
		return joined(n.Terms, " AND ", inParentheses)
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

// joined joins what format returns for each part.
func joined[T any](all []T, separator string, format func(T) string) string {
	parts := make([]string, len(all))
	for i, t := range all {
		parts[i] = format(t)
	}
	return strings.Join(parts, separator)
}

// inParentheses formats a node, with parentheses if it is an AND or OR. The result never has more parentheses than the text: AND
// binds more tightly than OR, so only an OR within an AND and either of them after a NOT need them, and they had them in the text.
func inParentheses(n Node) string {
	if _, ok := n.(Chain); ok {
		return "(" + format(n) + ")"
	}
	return format(n)
}

// infixNot reports whether NOT is written inside the test, as in IS NOT NULL.
func (t Test) infixNot() bool {
	return slices.Contains([]Operator{In, Between, Prefix, IsNull, IsNaN}, t.Op)
}

// format formats the test. not is "NOT " or empty, and is put where the operator requires it.
func (t Test) format(not string) string {
	switch t.Op {
	case IsNull:
		return t.Column.String() + " IS " + not + "NULL"
	case IsNaN:
		return t.Column.String() + " IS " + not + "NAN"
	case In:
		return fmt.Sprintf("%s %sIN (%s)", t.Column, not, joined(t.Args, ", ", Literal.String))
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
	return joined(c.Parts, ".", func(part string) string {
		if bare(part) {
			return part
		}
		return quote(part, `"`)
	})
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
