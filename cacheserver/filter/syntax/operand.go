// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package syntax

import (
	"strings"
	"unicode/utf8"
)

func columnNumber(text string, offset int) int { return utf8.RuneCountInString(text[:offset]) + 1 }

var typedLiterals = map[string]LiteralKind{
	"DATE": DateLiteral, "TIME": TimeLiteral, "TIMESTAMP": TimestampLiteral, "TIMESTAMPTZ": TimestampLiteral, "UUID": UUIDLiteral,
}

// typedLiteral returns the kind of literal that a keyword before a string denotes, such as DATE.
func typedLiteral(word token) (kind LiteralKind, ok bool) {
	if word.kind == wordToken {
		kind, ok = typedLiterals[strings.ToUpper(word.value)]
	}
	return kind, ok
}

// literalKinds are the tokens that are literals themselves.
var literalKinds = map[tokenKind]LiteralKind{numberToken: NumberLiteral, stringToken: StringLiteral, bytesToken: BytesLiteral}

func (p *parser) atLiteral() bool {
	t := p.peek()
	if _, ok := literalKinds[t.kind]; ok || t.symbol("+", "-") {
		return true
	}
	_, typed := typedLiteral(t)
	return t.is("TRUE") || t.is("FALSE") || t.is("NULL") || typed && p.after().kind == stringToken
}

func (p *parser) atColumn() bool {
	t := p.peek()
	return t.kind == quotedToken || t.kind == wordToken && !reserved(t.value)
}

// literal parses a literal, or returns an error that quotes the token found instead.
func (p *parser) literal() (Literal, error) {
	t := p.peek()
	switch {
	case t.is("NULL"):
		return Literal{}, p.fail(t, "a comparison with NULL is never true: use IS NULL or IS NOT NULL")
	case !p.atLiteral() && p.atColumn():
		return Literal{}, p.fail(t, "expected a literal: two columns cannot be compared, and 'strings' stand in single quotes")
	case !p.atLiteral():
		return Literal{}, p.fail(t, "expected a literal")
	}
	p.at++
	if kind, typed := typedLiteral(t); typed {
		return Literal{Kind: kind, Value: p.take().value, Start: t.start}, nil
	}
	if kind, ok := literalKinds[t.kind]; ok {
		return Literal{Kind: kind, Value: t.value, Start: t.start}, nil
	}
	if t.kind == wordToken {
		return Literal{Kind: BoolLiteral, Value: strings.ToUpper(t.value), Start: t.start}, nil
	}
	number := p.take()
	if number.kind != numberToken {
		return Literal{}, p.fail(number, "expected a number after %s", t.value)
	}
	return Literal{Kind: NumberLiteral, Value: strings.TrimPrefix(t.value, "+") + number.value, Start: t.start}, nil
}

// column parses a name with dots.
func (p *parser) column() (Column, error) {
	first := p.take()
	col := Column{Parts: []string{first.value}, Start: first.start}
	for p.peek().symbol(".") {
		p.at++
		t := p.take()
		if t.kind != wordToken && t.kind != quotedToken {
			return Column{}, p.fail(t, "expected the name of a field after the dot")
		}
		col.Parts = append(col.Parts, t.value)
	}
	return col, nil
}

// like parses the pattern of LIKE, which must be a prefix followed by %, or have no wildcards.
func (p *parser) like(col Column) (Node, error) {
	pattern := p.take()
	if pattern.kind != stringToken {
		return nil, p.fail(pattern, "expected a pattern such as 'x%%' after LIKE")
	}
	escape := rune(-1)
	if p.accept("ESCAPE") {
		t := p.take()
		if t.kind != stringToken || utf8.RuneCountInString(t.value) != 1 {
			return nil, p.fail(t, "expected a string of one character after ESCAPE")
		}
		escape, _ = utf8.DecodeRuneInString(t.value)
	}
	value, open, reason := likePrefix(pattern.value, escape)
	if reason != "" {
		return nil, p.fail(pattern, "LIKE '%s': %s", Short(pattern.value), reason)
	}
	op := Equal
	if open {
		op = Prefix
	}
	return Test{col, op, []Literal{{Kind: StringLiteral, Value: value, Start: pattern.start}}}, nil
}

// likePrefix returns the literal prefix of a pattern and whether the pattern ends in %, or the reason why the pattern is not
// supported.
func likePrefix(pattern string, escape rune) (value string, open bool, reason string) {
	var start strings.Builder
	escaped := false
	for _, r := range pattern {
		switch {
		case escaped && r != escape && r != '%' && r != '_':
			return "", false, "the escape character stands before %, _ or itself"
		case !escaped && r == escape:
			escaped = true
			continue
		case !escaped && r == '%':
			open = true
			continue
		case !escaped && r == '_', open:
			return "", false, "only patterns with nothing but a % at the end are supported, such as 'x%'"
		}
		escaped = false
		start.WriteRune(r)
	}
	if escaped {
		return "", false, "the pattern ends with its escape character"
	}
	return start.String(), open, ""
}
