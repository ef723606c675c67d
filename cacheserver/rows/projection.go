// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/offheap"
)

// Projection is a selection of columns of a layout, in any order. It is immutable and safe for concurrent use.
type Projection struct {
	layout  *Layout
	schema  *arrow.Schema
	columns []int
	nodes   []*node
	buffers int
	headers headers
	narrow  []*node // those of nodes whose values have fewer bytes in messages than in the layout's schema

	allowance *offheap.Allowance // the messages' memory is reserved in it; nil: not counted
	into      []byte             // for the body of the next message
}

// Project selects columns by their index in the layout's schema, in any order, without duplicates. The number of columns plus an index
// selects the lengths of that column. With an empty slice no column is selected, and messages carry only row counts.
func (l *Layout) Project(columns []int) (*Projection, error) {
	p := &Projection{layout: l}
	seen := make([]bool, 2*len(l.columns))
	fields := make([]arrow.Field, 0, len(columns))
	for _, c := range columns {
		if c < 0 || c >= 2*len(l.columns) {
			return nil, fmt.Errorf("column %d: there are columns 0 to %d, and their lengths", c, len(l.columns)-1)
		}
		field := l.schema.Field(c % len(l.columns))
		if seen[c] {
			return nil, fmt.Errorf("column %d (%q) is selected twice", c, field.Name)
		}
		seen[c] = true
		if c >= len(l.columns) {
			if l.columns[c-len(l.columns)].length == nil {
				return nil, fmt.Errorf("column %q of type %s has no lengths: want a list, a string or binary", field.Name, field.Type)
			}
			field = LengthField(field.Name)
		}
		p.add(c)
		fields = append(fields, field)
	}
	meta := l.schema.Metadata()
	p.schema = arrow.NewSchema(fields, &meta)
	p.headers = newHeaders(len(p.nodes), p.buffers)
	return p, nil
}

// All is the projection of every column, in the schema's order.
func (l *Layout) All() *Projection { return l.all }

// Within returns the projection for one client, whose messages' memory is reserved in the allowance.
func (p *Projection) Within(a *offheap.Allowance) *Projection {
	within := *p
	within.allowance = a
	return &within
}

// Into returns the projection for one message whose body is written to memory, if it fits there (Message.Placed).
func (p *Projection) Into(memory []byte) *Projection {
	into := *p
	into.into = memory
	return &into
}

// HeaderBytes is the length of the header of each message.
func (p *Projection) HeaderBytes() int { return p.headers.size() }

// Nodes is the number of arrays in a message, including nested ones.
func (p *Projection) Nodes() int { return len(p.nodes) }

// messageBytes is the approximate length of messages of Range.
func (p *Projection) messageBytes() int64 {
	if p.allowance == nil {
		return usualBytes
	}
	return min(usualBytes, p.allowance.Size()/2)
}

// Schema is the schema of the messages, in the projection's order.
func (p *Projection) Schema() *arrow.Schema { return p.schema }

func (p *Projection) add(c int) {
	p.columns = append(p.columns, c)
	if own := len(p.layout.columns); c >= own {
		p.nodes = append(p.nodes, p.layout.root(c))
		p.buffers += kindLength.buffers()
		return
	}
	col := p.layout.columns[c]
	p.nodes = append(p.nodes, p.layout.nodesOf(c)...)
	p.buffers += col.buffers[1] - col.buffers[0]
}
