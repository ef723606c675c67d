// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package syntax

// Node is a WHERE clause as a tree: a Chain or a Not of other nodes, a Const, or a leaf. The parser's leaves are Tests; code that binds a
// clause to columns may replace them with leaves of its own types. A Chain has at least two terms, none of which is a Chain by the same
// operator; Not never contains a Not. So the nesting of parentheses bounds the depth. Nodes are immutable.
type Node any

type (
	// Chain is true if all of its terms are or, with Or, if one of them is.
	Chain struct {
		Or    bool
		Terms []Node
	}
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

// flipped are the operators that give the same result with exchanged operands.
var flipped = map[Operator]Operator{Less: Greater, LessEqual: GreaterEqual, Greater: Less, GreaterEqual: LessEqual, Equal: Equal, NotEqual: NotEqual}

// Orders reports whether the operator requires the column's values to be ordered.
func (o Operator) Orders() bool { return o == Between || flipped[o] != "" && flipped[o] != o }

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

// negate returns the negation of the node, if negated is set; a double negation cancels out, in three-valued logic too.
func negate(n Node, negated bool) Node {
	if !negated {
		return n
	}
	switch n := n.(type) {
	case Not:
		return n.Term
	case Const:
		return Const{!n.Value}
	}
	return Not{n}
}

// Join joins terms with OR or AND, and flattens terms that are such chains themselves.
func Join(or bool, terms ...Node) Node {
	var flat []Node
	for _, t := range terms {
		if c, ok := t.(Chain); ok && c.Or == or {
			flat = append(flat, c.Terms...)
			continue
		}
		flat = append(flat, t)
	}
	if len(flat) == 1 {
		return flat[0]
	}
	return Chain{or, flat}
}

// Replace returns n without Not, and with other leaves: leaf gets each of them, and whether it is negated.
func Replace(n Node, leaf func(n Node, negated bool) (Node, error)) (Node, error) {
	return replace(n, false, leaf)
}

func replace(n Node, negated bool, leaf func(Node, bool) (Node, error)) (Node, error) {
	switch n := n.(type) {
	case Const:
		return Const{n.Value != negated}, nil
	case Not:
		return replace(n.Term, !negated, leaf)
	case Chain:
		terms := make([]Node, len(n.Terms))
		for i, t := range n.Terms {
			var err error
			if terms[i], err = replace(t, negated, leaf); err != nil {
				return nil, err
			}
		}
		return Join(n.Or != negated, terms...), nil
	}
	return leaf(n, negated)
}
