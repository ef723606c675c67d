// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package syntax

// Node is a WHERE clause as a tree: And, Or or Not of other nodes, a Const, or a leaf. The parser's leaves are Tests; code that binds
// a clause to columns may replace them with leaves of its own types. And and Or have at least two terms, none of their own type; Not
// never contains a Not. So the nesting of parentheses bounds the depth. Nodes are immutable.
type Node any

type (
	// And is true if all of its terms are.
	And struct{ Terms []Node }
	// Or is true if one of its terms is.
	Or struct{ Terms []Node }
	// Not is true if its term is false.
	Not struct{ Term Node }
	// Const is always true or always false.
	Const struct{ Value bool }
)

// Operator is the operator of a test.
type Operator string

// The operators; the values are their spelling.
const (
	Equal        Operator = "="
	NotEqual     Operator = "<>"
	Less         Operator = "<"
	LessEqual    Operator = "<="
	Greater      Operator = ">"
	GreaterEqual Operator = ">="
	In           Operator = "IN"
	Between      Operator = "BETWEEN"
	Prefix       Operator = "LIKE" // its one argument is the prefix itself, without wildcards
	IsNull       Operator = "IS NULL"
	IsNaN        Operator = "IS NAN"
)

// flip returns the operator that gives the same result with exchanged operands.
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

// Orders reports whether the operator requires the column's values to be ordered.
func (o Operator) Orders() bool {
	switch o {
	case Less, LessEqual, Greater, GreaterEqual, Between:
		return true
	}
	return false
}

// Test is a leaf as parsed. The operator determines the number of Args: none for IsNull and IsNaN, two for Between, one or more for
// In, one for the others.
type Test struct {
	Column Column
	Op     Operator
	Args   []Literal
}

// Column is a name as written, preceded by the names of the structs that contain it.
type Column struct {
	Parts []string
	Start int // byte offset in the text
}

// LiteralKind is the type that a literal's syntax denotes.
type LiteralKind string

// The kinds of literals; error messages show their values.
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

// Literal is a value as written: the sign and digits of a number, or the text between the quotes.
type Literal struct {
	Kind  LiteralKind
	Value string
	Start int  // byte offset in the text
	Bare  bool // not written: the implied TRUE of a boolean column that stands by itself
}

// negate returns the negation of the node; a double negation cancels out, in three-valued logic too.
func negate(n Node) Node {
	switch n := n.(type) {
	case Not:
		return n.Term
	case Const:
		return Const{!n.Value}
	}
	return Not{n}
}

// allOf joins terms with AND and flattens terms that are ANDs themselves.
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

// anyOf joins terms with OR and flattens terms that are ORs themselves.
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
