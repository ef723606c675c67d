// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package where

// node is a WHERE clause as a tree: all, one or not of other nodes, a constant, or a leaf. Leaves are tests
// as parsed, and become checks when they are bound to columns. And and or nodes hold at least two terms,
// none of their own kind; not nodes hold no not node. So the depth is bounded by the parentheses.
type node any

type (
	andNode   struct{ terms []node }
	orNode    struct{ terms []node }
	notNode   struct{ term node }
	constNode struct{ value bool }
)

// operator is what a leaf asks of its column.
type operator string

const (
	equal        operator = "="
	notEqual     operator = "<>"
	less         operator = "<"
	lessEqual    operator = "<="
	greater      operator = ">"
	greaterEqual operator = ">="
	in           operator = "IN"
	between      operator = "BETWEEN"
	prefix       operator = "LIKE" // of the one literal, which is the prefix itself
	isNull       operator = "IS NULL"
	isNaN        operator = "IS NAN"
)

// flip is the operator with its sides exchanged.
func (o operator) flip() operator {
	switch o {
	case less:
		return greater
	case lessEqual:
		return greaterEqual
	case greater:
		return less
	case greaterEqual:
		return lessEqual
	}
	return o
}

// orders tells whether the operator needs its column's values to have an order.
func (o operator) orders() bool {
	switch o {
	case less, lessEqual, greater, greaterEqual, between:
		return true
	}
	return false
}

// test is a leaf as parsed.
type test struct {
	column column
	op     operator
	args   []literal
}

// column is a name as written.
type column struct {
	parts []string
	start int
}

type literalKind string

const (
	numberLiteral    literalKind = "number"
	stringLiteral    literalKind = "string"
	boolLiteral      literalKind = "boolean"
	bytesLiteral     literalKind = "byte string"
	dateLiteral      literalKind = "DATE"
	timeLiteral      literalKind = "TIME"
	timestampLiteral literalKind = "TIMESTAMP"
	uuidLiteral      literalKind = "UUID"
)

// literal is a value as written: its sign and digits, or what stands between its quotes.
type literal struct {
	kind  literalKind
	value string
	start int
	bare  bool // not written at all: a column that stands by itself must be true
}

// negate is the node's negation; two of them cancel out, in three-valued logic too.
func negate(n node) node {
	switch n := n.(type) {
	case notNode:
		return n.term
	case constNode:
		return constNode{!n.value}
	}
	return notNode{n}
}

// allOf joins terms with AND and flattens those that are ANDs themselves.
func allOf(terms []node) node {
	var flat []node
	for _, t := range terms {
		if a, ok := t.(andNode); ok {
			flat = append(flat, a.terms...)
			continue
		}
		flat = append(flat, t)
	}
	if len(flat) == 1 {
		return flat[0]
	}
	return andNode{flat}
}

// anyOf joins terms with OR and flattens those that are ORs themselves.
func anyOf(terms []node) node {
	var flat []node
	for _, t := range terms {
		if o, ok := t.(orNode); ok {
			flat = append(flat, o.terms...)
			continue
		}
		flat = append(flat, t)
	}
	if len(flat) == 1 {
		return flat[0]
	}
	return orNode{flat}
}
