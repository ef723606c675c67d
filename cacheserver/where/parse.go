// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package where

// parser reads tokens by recursive descent; only parentheses recurse.
type parser struct {
	text   string
	tokens []token
	at     int
	depth  int
}

func parse(text string) (node, error) {
	tokens, err := lex(text)
	if err != nil {
		return nil, err
	}
	p := parser{text: text, tokens: tokens}
	if p.peek().kind == endToken {
		return constNode{true}, nil
	}
	n, err := p.or()
	if err != nil {
		return nil, err
	}
	if t := p.peek(); t.kind != endToken {
		return nil, p.fail(t, "expected AND, OR or the end")
	}
	if length := len(format(n)); length > maxLength {
		return nil, errorAt(text, 0, "the text has %d bytes in canonical form, at most %d are allowed", length, maxLength)
	}
	return n, nil
}

func (p *parser) peek() token { return p.tokens[p.at] }

// after is the token behind the next one; behind the end there is only the end.
func (p *parser) after() token { return p.tokens[min(p.at+1, len(p.tokens)-1)] }

func (p *parser) take() token {
	t := p.peek()
	if t.kind != endToken {
		p.at++
	}
	return t
}

// accept takes the next token if it is the keyword.
func (p *parser) accept(keyword string) bool {
	if !p.peek().is(keyword) {
		return false
	}
	p.at++
	return true
}

func (p *parser) fail(t token, format string, args ...any) error {
	return errorAt(p.text, t.start, format, args...)
}

func (p *parser) or() (node, error) {
	return p.chain("OR", p.and, anyOf)
}

func (p *parser) and() (node, error) {
	return p.chain("AND", p.not, allOf)
}

// chain reads terms that stand between the same keyword.
func (p *parser) chain(keyword string, term func() (node, error), join func([]node) node) (node, error) {
	var terms []node
	for {
		n, err := term()
		if err != nil {
			return nil, err
		}
		terms = append(terms, n)
		if !p.accept(keyword) {
			return join(terms), nil
		}
	}
}

func (p *parser) not() (node, error) {
	negated := false
	for p.accept("NOT") {
		negated = !negated
	}
	n, err := p.predicate()
	if err != nil || !negated {
		return n, err
	}
	return negate(n), nil
}

func (p *parser) predicate() (node, error) {
	t := p.peek()
	switch {
	case t.symbol("("):
		return p.group()
	case (t.is("TRUE") || t.is("FALSE")) && !comparison(p.after()):
		p.at++
		return constNode{t.is("TRUE")}, nil
	case p.atLiteral():
		return p.literalFirst()
	case p.atColumn():
		return p.columnFirst()
	}
	return nil, p.fail(t, "expected a condition, such as a column and what to compare it with")
}

func (p *parser) group() (node, error) {
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

// operatorOf is the operator of a comparison token.
func operatorOf(t token) operator {
	switch t.value {
	case "==":
		return equal
	case "!=":
		return notEqual
	}
	return operator(t.value)
}

// literalFirst reads literal, comparison, column.
func (p *parser) literalFirst() (node, error) {
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
	return test{col, operatorOf(op).flip(), []literal{value}}, nil
}

// columnFirst reads a column and what is asked of it.
func (p *parser) columnFirst() (node, error) {
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
		return test{col, operatorOf(t), []literal{value}}, nil
	}
	if p.accept("IS") {
		return p.is(col)
	}
	negated := p.accept("NOT")
	n, err := p.keywordTest(col, negated)
	if err != nil || !negated {
		return n, err
	}
	return negate(n), nil
}

// keywordTest reads IN, BETWEEN or LIKE, or takes the column by itself if none follows.
func (p *parser) keywordTest(col column, negated bool) (node, error) {
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
		return test{col, equal, []literal{{kind: boolLiteral, value: "TRUE", start: col.start, bare: true}}}, nil
	default:
		return nil, p.fail(t, "expected a comparison, IN, BETWEEN, LIKE or IS after column %s", short(col.String()))
	}
}

func (p *parser) is(col column) (node, error) {
	negated := p.accept("NOT")
	var n node
	switch {
	case p.accept("NULL"):
		n = test{column: col, op: isNull}
	case p.accept("NAN"):
		n = test{column: col, op: isNaN}
	default:
		return nil, p.fail(p.peek(), "expected NULL or NAN after IS")
	}
	if negated {
		return negate(n), nil
	}
	return n, nil
}

func (p *parser) in(col column) (node, error) {
	if t := p.take(); !t.symbol("(") {
		return nil, p.fail(t, "expected ( and a list of literals after IN")
	}
	var values []literal
	for {
		value, err := p.literal()
		if err != nil {
			return nil, err
		}
		values = append(values, value)
		switch t := p.take(); {
		case t.symbol(")"):
			return test{col, in, values}, nil
		case !t.symbol(","):
			return nil, p.fail(t, "expected , or ) in the list after IN")
		}
	}
}

func (p *parser) between(col column) (node, error) {
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
	return test{col, between, []literal{low, high}}, nil
}
