// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package syntax

import (
	"encoding/hex"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind int

const (
	endToken tokenKind = iota
	wordToken
	quotedToken // a quoted name
	numberToken
	stringToken
	bytesToken
	symbolToken
)

// token is one token of the text. value is the unquoted, unescaped text.
type token struct {
	kind       tokenKind
	value      string
	start, end int // byte offsets
}

// is reports whether the token is the keyword, which is given in upper case; case is ignored.
func (t token) is(keyword string) bool {
	return t.kind == wordToken && strings.ToUpper(t.value) == keyword
}

// symbol reports whether the token is one of the symbols.
func (t token) symbol(symbols ...string) bool {
	return t.kind == symbolToken && slices.Contains(symbols, t.value)
}

// reserved reports whether a word can't be a column name unless it is quoted.
func reserved(word string) bool {
	switch strings.ToUpper(word) {
	case "AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE":
		return true
	}
	return false
}

// lexer splits the text into tokens.
type lexer struct {
	text   string
	at     int
	tokens []token
}

// lex returns all tokens of the text, followed by an end token.
func lex(text string) ([]token, error) {
	if len(text) > maxLength {
		return nil, ErrorAt(text, 0, "the text has %d bytes, at most %d are allowed", len(text), maxLength)
	}
	if !utf8.ValidString(text) {
		valid := len(text) - len(strings.TrimLeftFunc(text, func(r rune) bool { return r != utf8.RuneError }))
		return nil, ErrorAt(text, valid, "the text is not valid UTF-8")
	}
	l := lexer{text: text}
	for l.skipSpace(); l.at < len(text); l.skipSpace() {
		if err := l.next(); err != nil {
			return nil, err
		}
	}
	l.add(endToken, "", l.at)
	return l.tokens, nil
}

func (l *lexer) add(kind tokenKind, value string, start int) {
	l.tokens = append(l.tokens, token{kind: kind, value: value, start: start, end: l.at})
}

func (l *lexer) peek(i int) byte {
	if l.at+i < len(l.text) {
		return l.text[l.at+i]
	}
	return 0
}

func (l *lexer) skipSpace() {
	rest := strings.TrimLeftFunc(l.text[l.at:], unicode.IsSpace)
	l.at = len(l.text) - len(rest)
}

func (l *lexer) next() error {
	start, c := l.at, l.peek(0)
	r, _ := utf8.DecodeRuneInString(l.text[l.at:])
	switch {
	case (c == 'x' || c == 'X') && l.peek(1) == '\'':
		return l.bytes()
	case wordStart(r):
		l.word()
		return nil
	case digit(c), c == '.' && digit(l.peek(1)) && !l.afterName():
		return l.number()
	case c == '\'':
		return l.quoted(stringToken, "string")
	case c == '"', c == '`':
		return l.quoted(quotedToken, "name")
	}
	for _, s := range []string{"==", "!=", "<>", "<=", ">=", "=", "<", ">", "(", ")", ",", ".", "+", "-"} {
		if strings.HasPrefix(l.text[l.at:], s) {
			l.at += len(s)
			l.add(symbolToken, s, start)
			return nil
		}
	}
	return ErrorAt(l.text, start, "unexpected character %q", r)
}

// afterName reports whether the lexer is directly after a name, where a dot selects a field of a struct.
func (l *lexer) afterName() bool {
	if len(l.tokens) == 0 {
		return false
	}
	last := l.tokens[len(l.tokens)-1]
	return last.end == l.at && (last.kind == wordToken || last.kind == quotedToken)
}

func wordStart(r rune) bool { return r == '_' || unicode.IsLetter(r) }

func wordPart(r rune) bool {
	return wordStart(r) || r == '$' || unicode.IsDigit(r) || unicode.IsMark(r)
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

// bare reports whether a name can be written without quotes.
func bare(name string) bool {
	r, size := utf8.DecodeRuneInString(name)
	return wordStart(r) && !reserved(name) && strings.IndexFunc(name[size:], func(r rune) bool { return !wordPart(r) }) < 0
}

func (l *lexer) word() {
	start := l.at
	rest := strings.TrimLeftFunc(l.text[l.at:], wordPart)
	l.at = len(l.text) - len(rest)
	l.add(wordToken, l.text[start:l.at], start)
}

func (l *lexer) number() error {
	start := l.at
	l.digits()
	if l.peek(0) == '.' {
		l.at++
		l.digits()
	}
	if c := l.peek(0); c == 'e' || c == 'E' {
		sign := 1
		if s := l.peek(1); s == '+' || s == '-' {
			sign = 2
		}
		if digit(l.peek(sign)) {
			l.at += sign
			l.digits()
		}
	}
	if r, _ := utf8.DecodeRuneInString(l.text[l.at:]); wordPart(r) {
		return ErrorAt(l.text, start, "a number cannot go on with %q", r)
	}
	l.add(numberToken, strings.ToLower(l.text[start:l.at]), start)
	return nil
}

func (l *lexer) digits() {
	for digit(l.peek(0)) {
		l.at++
	}
}

// quoted reads up to the closing quote; a doubled quote stands for one.
func (l *lexer) quoted(kind tokenKind, what string) error {
	start, quote := l.at, l.text[l.at]
	var value strings.Builder
	for l.at++; l.at < len(l.text); l.at++ {
		c := l.text[l.at]
		if c == quote && l.peek(1) != quote {
			l.at++
			if kind == quotedToken && value.Len() == 0 {
				return ErrorAt(l.text, start, "a name cannot be empty")
			}
			l.add(kind, value.String(), start)
			return nil
		}
		if c == quote {
			l.at++
		}
		value.WriteByte(c)
	}
	return ErrorAt(l.text, start, "the %s has no closing %c", what, quote)
}

func (l *lexer) bytes() error {
	start := l.at
	l.at++
	if err := l.quoted(stringToken, "byte string"); err != nil {
		return err
	}
	last := &l.tokens[len(l.tokens)-1]
	value, err := hex.DecodeString(last.value)
	if err != nil {
		return ErrorAt(l.text, start, "X'%s' is not pairs of hexadecimal digits", Short(last.value))
	}
	*last = token{kind: bytesToken, value: string(value), start: start, end: last.end}
	return nil
}
