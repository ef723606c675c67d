// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package syntax

// Node is a WHERE clause as a tree: And, Or or Not of other nodes, a Const, or a leaf, which is a Test as parsed; who binds a
// clause to columns may put leaves of its own there. And and Or hold at least two terms, none of their own kind; Not
// holds no Not. So the depth is bounded by the parentheses. Nodes are never changed after they are made.
type Node any

type (
	// And is true where all of its terms are.
	And struct{ Terms []Node }
	// Or is true where one of its terms is.
	Or struct{ Terms []Node }
	// Not is true where its term is false.
	Not struct{ Term Node }
	// Const is always true or always false.
	Const struct{ Value bool }
)

// Operator is what a leaf asks of its column.
type Operator string

// The operators; their values are as they are written.
const (
	Equal        Operator = "="
	NotEqual     Operator = "<>"
	Less         Operator = "<"
	LessEqual    Operator = "<="
	Greater      Operator = ">"
	GreaterEqual Operator = ">="
	In           Operator = "IN"
	Between      Operator = "BETWEEN"
	Prefix       Operator = "LIKE" // of the one literal, which is the prefix itself
	IsNull       Operator = "IS NULL"
	IsNaN        Operator = "IS NAN"
)

// flip is the operator with its sides exchanged.
func (o Operator) flip() Operator {
	switch o {
	case Less:
		return Greater
	case LessEqual:
		return GreaterEqual
	case Greater:
		return Less
	case GreaterEqual:
		return LessEqual
	}
	return o
}

// Orders tells whether the operator needs its column's values to have an order.
func (o Operator) Orders() bool {
	switch o {
	case Less, LessEqual, Greater, GreaterEqual, Between:
		return true
	}
	return false
}

// Test is a leaf as parsed. It has as many Args as its operator wants: none for IsNull and IsNaN, two for Between, any number from
// one for In, else one.
type Test struct {
	Column Column
	Op     Operator
	Args   []Literal
}

// Column is a name as written, with the names of the structs that it lies in before it.
type Column struct {
	Parts []string
	Start int // byte offset in the text
}

// LiteralKind is what a literal's form says of its type.
type LiteralKind string

// The kinds of literals; their values are the words for them.
const (
	NumberLiteral    LiteralKind = "number"
	StringLiteral    LiteralKind = "string"
	BoolLiteral      LiteralKind = "boolean"
	BytesLiteral     LiteralKind = "byte string"
	DateLiteral      LiteralKind = "DATE"
	TimeLiteral      LiteralKind = "TIME"
	TimestampLiteral LiteralKind = "TIMESTAMP"
	UUIDLiteral      LiteralKind = "UUID"
)

// Literal is a value as written: its sign and digits, or what stands between its quotes.
type Literal struct {
	Kind  LiteralKind
	Value string
	Start int  // byte offset in the text
	Bare  bool // not written at all: a column that stands by itself must be true
}

// negate is the node's negation; two of them cancel out, in three-valued logic too.
func negate(n Node) Node {
	switch n := n.(type) {
	case Not:
		return n.Term
	case Const:
		return Const{!n.Value}
	}
	return Not{n}
}

// allOf joins terms with AND and flattens those that are ANDs themselves.
func allOf(terms []Node) Node {
	var flat []Node
	for _, t := range terms {
		if a, ok := t.(And); ok {
			flat = append(flat, a.Terms...)
			continue
		}
		flat = append(flat, t)
	}
	if len(flat) == 1 {
		return flat[0]
	}
	return And{flat}
}

// anyOf joins terms with OR and flattens those that are ORs themselves.
func anyOf(terms []Node) Node {
	var flat []Node
	for _, t := range terms {
		if o, ok := t.(Or); ok {
			flat = append(flat, o.Terms...)
			continue
		}
		flat = append(flat, t)
	}
	if len(flat) == 1 {
		return flat[0]
	}
	return Or{flat}
}
