// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate

import (
	"cmp"
	"fmt"
	"slices"

	ice "github.com/apache/iceberg-go"
)

// Filter is a bound filter, compiled for evaluation over Arrow arrays. It is immutable and safe for concurrent use; nil is true for
// every row. Make it with Compile.
//
// NOT is applied to the terms, so that only AND and OR are above them and a row matches if and only if they are true in two-valued
// logic. Chains of AND and of OR are one node each. In a chain of OR, equalities of one column are one lookup in a set; so are
// inequalities in a chain of AND. Equal parts of the filter are one node.
type Filter struct {
	root  *node
	depth int // bitmaps that are in use at a time
	slots int // nodes whose bitmaps are kept for their further uses
	terms int
}

// mostKept is the number of nodes that are evaluated once although they are used several times; each takes a bitmap while rows are
// evaluated.
const mostKept = 256

// Compile compiles a bound filter; a nil filter stays nil. paths locates the fields that the filter compares, by field id.
func Compile(bound ice.BooleanExpression, paths map[int]Path) (*Filter, error) {
	if bound == nil {
		return nil, nil
	}
	parsed, err := ice.VisitExpr(bound, parser{})
	if err != nil {
		return nil, fmt.Errorf("filter: %w", err)
	}
	c := compiler{paths: paths, nodes: map[string]*node{}}
	root, err := c.compile(parsed, false)
	if err != nil {
		return nil, fmt.Errorf("filter: %w", err)
	}
	f := &Filter{root: root}
	f.finish()
	return f, nil
}

// Terms is the number of comparisons that are made for a row at most.
func (f *Filter) Terms() int {
	if f == nil {
		return 0
	}
	return f.terms
}

// Memory is the number of bytes that an Evaluator takes.
func (f *Filter) Memory() int64 {
	if f == nil {
		return 0
	}
	return int64(f.depth+f.slots+1) * blockRows / 8
}

// tree is a filter as a tree of its operators: And and Or have both sides, Not has left, and a predicate has none.
type tree struct {
	op          ice.Operation
	left, right *tree
	predicate   ice.BoundPredicate
}

// parser is a visitor that makes a tree of an expression. It panics if it can't: iceberg-go's visitors convert that to an error.
type parser struct{}

var _ ice.BooleanExprVisitor[*tree] = parser{}

func (parser) VisitTrue() *tree           { return &tree{op: ice.OpTrue} }
func (parser) VisitFalse() *tree          { return &tree{op: ice.OpFalse} }
func (parser) VisitNot(child *tree) *tree { return &tree{op: ice.OpNot, left: child} }
func (parser) VisitAnd(left, right *tree) *tree {
	return &tree{op: ice.OpAnd, left: left, right: right}
}
func (parser) VisitOr(left, right *tree) *tree { return &tree{op: ice.OpOr, left: left, right: right} }
func (parser) VisitBound(p ice.BoundPredicate) *tree {
	return &tree{op: p.Op(), predicate: p}
}

func (parser) VisitUnbound(p ice.UnboundPredicate) *tree {
	panic(fmt.Errorf("predicate %s is not bound", p))
}

// node is a part of a compiled filter: OpAnd or OpOr of at least two other nodes, OpTrue, OpFalse, or a term.
type node struct {
	op   ice.Operation
	kids []*node // terms first
	term *term

	id   int
	uses int // by other nodes
	slot int // of its bitmap, if it is kept; from 1
}

// compiler makes nodes, equal ones only once.
type compiler struct {
	paths map[int]Path
	nodes map[string]*node // by key
}

// node returns the node with a key, which must determine it; make makes it.
func (c *compiler) node(key []byte, made node) *node {
	if n, ok := c.nodes[string(key)]; ok {
		return n
	}
	made.id = len(c.nodes)
	c.nodes[string(key)] = &made
	return &made
}

func (c *compiler) constant(value bool) *node {
	if value {
		return c.node([]byte("true"), node{op: ice.OpTrue})
	}
	return c.node([]byte("false"), node{op: ice.OpFalse})
}

// negation is the operator that a negated AND or OR becomes when its operands are negated.
func negation(op ice.Operation) ice.Operation {
	if op == ice.OpAnd {
		return ice.OpOr
	}
	return ice.OpAnd
}

// compile returns the node that is true where t is true or, if negated, where t is false.
func (c *compiler) compile(t *tree, negated bool) (*node, error) {
	switch t.op {
	case ice.OpTrue, ice.OpFalse:
		return c.constant((t.op == ice.OpTrue) != negated), nil
	case ice.OpNot:
		return c.compile(t.left, !negated)
	case ice.OpAnd, ice.OpOr:
		op := t.op
		if negated {
			op = negation(op)
		}
		kids, err := c.gather(nil, t, negated, op)
		if err != nil {
			return nil, err
		}
		return c.join(op, kids), nil
	}
	made, err := c.termOf(t.predicate, negated)
	if err != nil {
		return nil, err
	}
	return c.term(made), nil
}

// gather appends the operands of a chain of op.
func (c *compiler) gather(kids []*node, t *tree, negated bool, op ice.Operation) (_ []*node, err error) {
	for t.op == ice.OpNot {
		t, negated = t.left, !negated
	}
	if own := t.op; own == ice.OpAnd || own == ice.OpOr {
		if negated {
			own = negation(own)
		}
		if own == op {
			if kids, err = c.gather(kids, t.left, negated, op); err != nil {
				return nil, err
			}
			return c.gather(kids, t.right, negated, op)
		}
	}
	kid, err := c.compile(t, negated)
	return append(kids, kid), err
}

// join returns the node of a chain of op.
func (c *compiler) join(op ice.Operation, kids []*node) *node {
	decides := c.constant(op == ice.OpOr) // the operand that makes the chain constant
	var flat []*node
	for _, kid := range kids {
		switch {
		case kid == decides:
			return kid
		case kid.op == ice.OpTrue || kid.op == ice.OpFalse:
		case kid.op == op:
			flat = append(flat, kid.kids...)
		default:
			flat = append(flat, kid)
		}
	}
	flat = c.mergeSets(op, flat)
	slices.SortFunc(flat, func(a, b *node) int {
		return cmp.Or(cmp.Compare(b.rank(), a.rank()), cmp.Compare(a.id, b.id))
	})
	flat = slices.Compact(flat)
	switch len(flat) {
	case 0:
		return c.constant(op == ice.OpAnd)
	case 1:
		return flat[0]
	}
	key := []byte(op.String())
	for _, kid := range flat {
		key = fmt.Appendf(key, " %d", kid.id)
	}
	return c.node(key, node{op: op, kids: flat})
}

// rank orders the operands of a chain: terms first, since they may decide the chain for all rows of a block.
func (n *node) rank() int {
	if n.term != nil {
		return 1
	}
	return 0
}

// mergeSets merges the equalities of each column in a chain of OR, and the inequalities in one of AND.
func (c *compiler) mergeSets(op ice.Operation, kids []*node) []*node {
	type merged struct {
		at     int // in rest
		values []Value
	}
	sets, order, rest := map[int]*merged{}, []*merged{}, kids[:0]
	for _, kid := range kids {
		if kid.term == nil || kid.term.test != isIn || kid.term.negated != (op == ice.OpAnd) {
			rest = append(rest, kid)
			continue
		}
		id := kid.term.path.Field.ID
		if m := sets[id]; m != nil {
			m.values = append(m.values, kid.term.values...)
			continue
		}
		sets[id] = &merged{at: len(rest), values: slices.Clip(kid.term.values)}
		order = append(order, sets[id])
		rest = append(rest, kid)
	}
	for _, m := range order {
		if of := rest[m.at].term; len(m.values) > len(of.values) {
			all := *of
			all.values = m.values
			rest[m.at] = c.term(all)
		}
	}
	return rest
}

// term returns the node of a term.
func (c *compiler) term(t term) *node {
	t.values = distinct(t.values)
	return c.node(t.key(), node{op: ice.OpEQ, term: &t})
}

// finish counts what evaluation needs, and prepares the terms for it.
func (f *Filter) finish() {
	var shared []*node
	var visit func(n *node)
	visit = func(n *node) {
		if n.uses++; n.uses == 2 {
			shared = append(shared, n)
		}
		if n.uses > 1 {
			return
		}
		if n.term != nil {
			n.term.prepare()
		}
		for _, kid := range n.kids {
			visit(kid)
		}
	}
	visit(f.root)
	slices.SortStableFunc(shared, func(a, b *node) int { return cmp.Compare(b.uses, a.uses) })
	for _, n := range shared[:min(len(shared), mostKept)] {
		f.slots++
		n.slot = f.slots
	}
	f.depth = depth(f.root)
	f.terms = price(f.root, make([]bool, f.slots+1))
}

func depth(n *node) int {
	most := 0
	for i, kid := range n.kids {
		most = max(most, depth(kid)+min(i, 1))
	}
	return max(most, 1)
}

// price is the number of terms that are evaluated for a node; those of kept nodes count once.
func price(n *node, kept []bool) (terms int) {
	if n.slot > 0 {
		if kept[n.slot] {
			return 0
		}
		kept[n.slot] = true
	}
	if n.term != nil {
		return 1
	}
	for _, kid := range n.kids {
		terms += price(kid, kept)
	}
	return terms
}
