// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package syntax

// parser is a recursive descent parser over tokens; it recurses only for parentheses.
type parser struct {
	text   string
	tokens []token
	at     int
	depth  int
}

// Parse parses the text. A blank text yields Const{true}. Errors are *Error.
func Parse(text string) (Node, error) {
	tokens, err := lex(text)
	if err != nil {
		return nil, err
	}
	p := parser{text: text, tokens: tokens}
	if p.peek().kind == endToken {
		return Const{true}, nil
	}
	n, err := p.or()
	if err != nil {
		return nil, err
	}
	if t := p.peek(); t.kind != endToken {
		return nil, p.fail(t, "expected AND, OR or the end")
	}
	if length := len(format(n)); length > maxLength {
		return nil, ErrorAt(text, 0, "the text has %d bytes in canonical form, at most %d are allowed", length, maxLength)
	}
	return n, nil
}

func (p *parser) peek() token { return p.tokens[p.at] }

// after returns the token after the next one, or the end token.
func (p *parser) after() token { return p.tokens[min(p.at+1, len(p.tokens)-1)] }

func (p *parser) take() token {
	t := p.peek()
	if t.kind != endToken {
		p.at++
	}
	return t
}

// accept consumes the next token if it is the keyword.
func (p *parser) accept(keyword string) bool {
	if !p.peek().is(keyword) {
		return false
	}
	p.at++
	return true
}

func (p *parser) fail(t token, format string, args ...any) error {
	return ErrorAt(p.text, t.start, format, args...)
}

func (p *parser) or() (Node, error) {
	return p.chain("OR", p.and)
}

func (p *parser) and() (Node, error) {
	return p.chain("AND", p.not)
}

// chain parses terms separated by the keyword.
func (p *parser) chain(keyword string, term func() (Node, error)) (Node, error) {
	var terms []Node
	for {
		n, err := term()
		if err != nil {
			return nil, err
		}
		terms = append(terms, n)
		if !p.accept(keyword) {
			return Join(keyword == "OR", terms...), nil
		}
	}
}

func (p *parser) not() (Node, error) {
	negated := false
	for p.accept("NOT") {
		negated = !negated
	}
	n, err := p.predicate()
	return negate(n, negated), err
}

func (p *parser) predicate() (Node, error) {
	t := p.peek()
	switch {
	case t.symbol("("):
		return p.group()
	case (t.is("TRUE") || t.is("FALSE")) && !comparison(p.after()):
		p.at++
		return Const{t.is("TRUE")}, nil
	case p.atLiteral():
		return p.literalFirst()
	case p.atColumn():
		return p.columnFirst()
	}
	return nil, p.fail(t, "expected a condition, such as a column and what to compare it with")
}

func (p *parser) group() (Node, error) {
	open := p.take()
	if p.depth++; p.depth > maxDepth {
		return nil, p.fail(open, "more than %d parentheses within each other", maxDepth)
	}
	n, err := p.or()
	if err != nil {
		return nil, err
	}
	if t := p.peek(); !t.symbol(")") {
		return nil, p.fail(t, "expected AND, OR or the ) that closes column %d", columnNumber(p.text, open.start))
	}
	p.at++
	p.depth--
	return n, nil
}

func comparison(t token) bool { return t.symbol("=", "==", "!=", "<>", "<", "<=", ">", ">=") }

// operatorOf returns the operator of a comparison token.
func operatorOf(t token) Operator {
	switch t.value {
	case "==":
		return Equal
	case "!=":
		return NotEqual
	}
	return Operator(t.value)
}

// literalFirst parses a comparison with the literal on the left.
func (p *parser) literalFirst() (Node, error) {
	value, err := p.literal()
	if err != nil {
		return nil, err
	}
	op := p.take()
	if !comparison(op) {
		return nil, p.fail(op, "expected a comparison such as = or < between a literal and a column")
	}
	if !p.atColumn() {
		return nil, p.fail(p.peek(), "expected a column: one side of a comparison is a column, the other a literal")
	}
	col, err := p.column()
	if err != nil {
		return nil, err
	}
	return Test{col, flipped[operatorOf(op)], []Literal{value}}, nil
}

// columnFirst parses a test that starts with a column.
func (p *parser) columnFirst() (Node, error) {
	col, err := p.column()
	if err != nil {
		return nil, err
	}
	t := p.peek()
	if comparison(t) {
		p.at++
		value, err := p.literal()
		if err != nil {
			return nil, err
		}
		return Test{col, operatorOf(t), []Literal{value}}, nil
	}
	if p.accept("IS") {
		return p.is(col)
	}
	negated := p.accept("NOT")
	n, err := p.keywordTest(col, negated)
	return negate(n, negated), err
}

// keywordTest parses the rest of an IN, BETWEEN or LIKE test; if none follows, the column itself is the test.
func (p *parser) keywordTest(col Column, negated bool) (Node, error) {
	switch t := p.peek(); {
	case p.accept("IN"):
		return p.in(col)
	case p.accept("BETWEEN"):
		return p.between(col)
	case p.accept("LIKE"):
		return p.like(col)
	case negated:
		return nil, p.fail(t, "expected IN, BETWEEN or LIKE after NOT")
	case t.kind == endToken, t.symbol(")"), t.is("AND"), t.is("OR"):
		return Test{col, Equal, []Literal{{Kind: BoolLiteral, Value: "TRUE", Start: col.Start, Bare: true}}}, nil
	default:
		return nil, p.fail(t, "expected a comparison, IN, BETWEEN, LIKE or IS after column %s", Short(col.String()))
	}
}

func (p *parser) is(col Column) (Node, error) {
	negated := p.accept("NOT")
	switch {
	case p.accept("NULL"):
		return negate(Test{Column: col, Op: IsNull}, negated), nil
	case p.accept("NAN"):
		return negate(Test{Column: col, Op: IsNaN}, negated), nil
	}
	return nil, p.fail(p.peek(), "expected NULL or NAN after IS")
}

func (p *parser) in(col Column) (Node, error) {
	if t := p.take(); !t.symbol("(") {
		return nil, p.fail(t, "expected ( and a list of literals after IN")
	}
	var values []Literal
	for {
		value, err := p.literal()
		if err != nil {
			return nil, err
		}
		values = append(values, value)
		switch t := p.take(); {
		case t.symbol(")"):
			return Test{col, In, values}, nil
		case !t.symbol(","):
			return nil, p.fail(t, "expected , or ) in the list after IN")
		}
	}
}

func (p *parser) between(col Column) (Node, error) {
	low, err := p.literal()
	if err != nil {
		return nil, err
	}
	if t := p.take(); !t.is("AND") {
		return nil, p.fail(t, "expected AND and the upper bound of BETWEEN")
	}
	high, err := p.literal()
	if err != nil {
		return nil, err
	}
	return Test{col, Between, []Literal{low, high}}, nil
}
