// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package predicate

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
)

// Filter is a filter, compiled for evaluation over Arrow arrays. It is immutable and safe for concurrent use; nil is true for every row.
// Make it with Compile.
//
// Only AND and OR are above its terms, so a row matches if and only if they are true in two-valued logic. Chains of AND and of OR are one
// node each. In a chain of OR, equalities of one column are one lookup in a set; so are inequalities in a chain of AND. Equal parts of
// the filter are one node.
type Filter struct {
	tree   syntax.Node
	fields []column.Field
	root   *node
	depth  int // bitmaps that are in use at a time
	slots  int // nodes whose bitmaps are kept for their further uses
	terms  int
}

// mostKept is the number of nodes that are evaluated once although they are used several times; each takes a bitmap while rows are
// evaluated.
const mostKept = 256

// Compile compiles a tree whose leaves are Tests. A filter that is true for every row is nil.
func Compile(tree syntax.Node) (*Filter, error) {
	tree, err := normal(tree)
	if err != nil {
		return nil, fmt.Errorf("filter: %w", err)
	}
	c := compiler{nodes: map[string]*node{}}
	f := &Filter{tree: tree}
	if f.root = c.compile(tree); f.root.op == opTrue {
		return nil, nil
	}
	f.fields = c.fields
	f.finish()
	return f, nil
}

// Tree is the filter as a tree without Not, whose leaves are Tests. Only those of equality, IsNull and IsNaN are negated in it.
func (f *Filter) Tree() syntax.Node { return f.tree }

// Fields are the fields that the filter compares, each once.
func (f *Filter) Fields() []column.Field {
	if f == nil {
		return nil
	}
	return f.fields
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

// operation is what a node does.
type operation byte

const (
	opTrue operation = iota
	opFalse
	opAll // of at least two other nodes
	opAny // of at least two other nodes
	opTerm
)

// node is a part of a compiled filter.
type node struct {
	op   operation
	kids []*node // terms first
	term *term

	id   int
	uses int // by other nodes
	slot int // of its bitmap, if it is kept; from 1
}

// compiler makes nodes, equal ones only once.
type compiler struct {
	fields []column.Field
	nodes  map[string]*node // by key
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

func (c *compiler) constant(op operation) *node { return c.node([]byte{byte(op)}, node{op: op}) }

// compile returns the node of a normal tree.
func (c *compiler) compile(n syntax.Node) *node {
	switch n := n.(type) {
	case syntax.Chain:
		if n.Or {
			return c.join(opAny, n.Terms)
		}
		return c.join(opAll, n.Terms)
	case Test:
		return c.term(c.termOf(n))
	case syntax.Const:
		if n.Value {
			return c.constant(opTrue)
		}
	}
	return c.constant(opFalse)
}

// join returns the node of a chain of op.
func (c *compiler) join(op operation, terms []syntax.Node) *node {
	neutral, decides := c.constant(opTrue), c.constant(opFalse) // the operands without effect, and those that make the chain constant
	if op == opAny {
		neutral, decides = decides, neutral
	}
	var flat []*node
	for _, t := range terms {
		switch kid := c.compile(t); {
		case kid == decides:
			return kid
		case kid == neutral:
		case kid.op == op:
			flat = append(flat, kid.kids...)
		default:
			flat = append(flat, kid)
		}
	}
	flat = c.mergeSets(op, flat)
	slices.SortFunc(flat, func(a, b *node) int { return cmp.Or(cmp.Compare(b.op, a.op), cmp.Compare(a.id, b.id)) })
	flat = slices.Compact(flat)
	switch len(flat) {
	case 0:
		return neutral
	case 1:
		return flat[0]
	}
	key := []byte{byte(op)}
	for _, kid := range flat {
		key = fmt.Appendf(key, " %d", kid.id)
	}
	return c.node(key, node{op: op, kids: flat})
}

// mergeSets merges the equalities of each column in a chain of OR, and the inequalities in one of AND.
func (c *compiler) mergeSets(op operation, kids []*node) []*node {
	type merged struct {
		at     int // in rest
		values []column.Value
	}
	sets, order, rest := map[int]*merged{}, []*merged{}, kids[:0]
	for _, kid := range kids {
		if kid.term == nil || kid.term.test != isIn || kid.term.negated != (op == opAll) {
			rest = append(rest, kid)
			continue
		}
		id := kid.term.field.ID
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
	return c.node(t.key(), node{op: opTerm, term: &t})
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
	most := 1
	for i, kid := range n.kids {
		most = max(most, depth(kid)+min(i, 1))
	}
	return most
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
